"""Helpers of tests: everything that two test files need, documented like public code.

Test files contain cases and expectations. A builder, model, runner of processes, fault or service
that two files need is here. A test writes its dataset in one line:

    write_dataset(tmp_path, {"a": 12, "b": columns(x=range(9), image=noise(9, 4, 5, 3))})

| module | content |
|---|---|
| **datasets** | |
| `datasets` | builder: `write_dataset`, `written_once`, `append`, `columns`, …; numbered frames |
| `tiny` | a dataset below 1.5 KB, and tools that change its parts and their checksums |
| `clip_data` | a dataset for loaders; checks of its clips; leaks of threads, files and memory |
| `video_data`, `video_file_data` | moving pictures; as files of many codecs |
| **originals** | |
| `trees` | TartanAir |
| `bags` | ROS and MCAP recordings |
| `lerobot_data`, `lerobot_video_data` | LeRobot datasets of lerobot's own writer; with video |
| `lerobot_depth_data`, `lerobot_language_data` | the same with depth; with language columns |
| `made_source` | sources without files: numbered, endless, or of given frames |
| **processes** | |
| `processes` | interpreters, forks, programs and threads of tests |
| `browser` | headless Chromium: pages, their log and requests, screenshots |
| `command_line` | the command line in this process, or as a process of its own |
| `lerobot_stand_in` | stand-ins for LeRobot's classes |
| **faults** | |
| `faults` | storages that count calls or inject faults; abandoned writers |
| `power_loss` | the states of a disk that a power loss may leave |
| `source_faults` | broken originals with their expected errors |
| **services** | |
| `services` | Azurite, moto, nginx and a FUSE mount |
| `services.places` | empty folders of all storages, for tests that run on each of them |
| `services.gcs_stub`, `services.hub_stub` | Google Cloud Storage and the Hub as stubs |
| `services.local_server`, `services.web_server` | base of test servers; a folder over HTTP |
| `services.fault_proxy` | an HTTP proxy that injects faults |
| `services.blobfile_pool` | blobfile's requests to a local service |
"""

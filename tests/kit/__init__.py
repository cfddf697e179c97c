"""Helpers of tests: everything that two test files need, documented like public code.

Test files contain cases and expectations. A builder, model, runner of processes, fault or service
that two files need is here, at most 4,000 lines of code in all; helpers are at most a quarter of a
test file (`tests/project/test_size_of_tests.py`). A test writes its dataset in one line:

    write_dataset(tmp_path, {"a": 12, "b": columns(x=range(9), image=noise(9, 4, 5, 3))})

| module | content |
|---|---|
| **datasets** | |
| `datasets` | builder: `write_dataset`, `columns`, `noise`, `texts`; numbered frames |
| `tiny` | a dataset below 1.5 KB, and tools that change its parts and their checksums |
| `clip_data` | a dataset for loaders; checks of its clips; leaks of threads, files and memory |
| `abandoned` | a writer that stops as if its process were killed |
| `video_data`, `video_file_data` | moving pictures; as GOPs, as files of many codecs |
| **originals** | |
| `originals`, `trees` | small originals that are read in place; TartanAir |
| `bags` | ROS and MCAP recordings |
| `lerobot_data`, `lerobot_video_data` | LeRobot datasets of lerobot's own writer; with video |
| `lerobot_depth_data`, `lerobot_language_data` | the same with depth; with language columns |
| `made_source` | a source without files |
| **processes** | |
| `command_line` | the command line in this process, or as a process of its own |
| `torch_process`, `torch_workers` | processes with torch preloaded; a simulated DataLoader worker |
| `own_threads` | threads of the running test; forks |
| `lerobot_stand_in`, `side_streams` | stand-ins for LeRobot's classes and for streams of a GPU |
| **faults** | |
| `storage_doubles` | storages that count calls or inject faults |
| `source_faults` | broken originals with their expected errors |
| `fault_proxy` | an HTTP proxy that injects faults |
| **services** | |
| `services` | Azurite, moto, nginx and a FUSE mount; programs that end with the test |
| `places` | empty folders of all storages, for tests that run on each of them |
| `gcs_stub`, `hub_stub` | stubs of Google Cloud Storage and of the Hugging Face Hub |
| `local_server`, `web_server` | base of test servers; a folder over HTTP |
| `blobfile_pool` | connection pools of blobfile |
"""

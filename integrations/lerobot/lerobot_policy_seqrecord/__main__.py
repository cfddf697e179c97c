"""Print, as JSON, what of the installed LeRobot the plug-in relies on.

::

    python -m lerobot_policy_seqrecord           # of the training: for 0.6.1, contract.json
    python -m lerobot_policy_seqrecord reader    # of the main branch: all that reader_contract.json
                                                 # is compared with

`arguments` and `asked` of the latter are read in LeRobot's `LeRobotDataset`.
"""

from __future__ import annotations

import json
import sys

from lerobot_policy_seqrecord.contract import described, described_reader

if sys.argv[1:] == ["reader"]:
    from lerobot.datasets import dataset_reader, storage

    found = described_reader(storage, dataset_reader)
else:
    from lerobot.datasets import factory
    from lerobot.scripts import lerobot_train

    found = described(factory, lerobot_train)
sys.stdout.write(json.dumps(found, indent=1) + "\n")

"""Print, as JSON, what of the installed LeRobot the plug-in relies on.

::

    python -m lerobot_policy_seqrecord           # of the training; exits with 1 and prints
                                                 # the differences unless equal to contract.json
    python -m lerobot_policy_seqrecord reader    # of the main branch: all that reader_contract.json
                                                 # is compared with

`arguments` and `asked` of the latter are read in LeRobot's `LeRobotDataset`.
"""

from __future__ import annotations

import json
import sys

from lerobot_policy_seqrecord.contract import ContractError, check, described, described_reader

if sys.argv[1:] == ["reader"]:
    from lerobot.datasets import dataset_reader, storage

    sys.stdout.write(json.dumps(described_reader(storage, dataset_reader), indent=1) + "\n")
else:
    from lerobot.datasets import factory
    from lerobot.scripts import lerobot_train

    sys.stdout.write(json.dumps(described(factory, lerobot_train), indent=1) + "\n")
    try:
        check(factory, lerobot_train, "mix")
    except ContractError as error:
        sys.exit(str(error))

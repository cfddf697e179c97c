"""Print, as JSON, what of the installed LeRobot the plug-in relies on."""

from __future__ import annotations

import json
import sys

from lerobot.datasets import factory
from lerobot.scripts import lerobot_train

from lerobot_policy_seqrecord.contract import described

sys.stdout.write(json.dumps(described(factory, lerobot_train), indent=1) + "\n")

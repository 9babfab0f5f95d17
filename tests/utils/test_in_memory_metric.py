"""What scores predictions writes nothing to the user's cache."""

import os
import subprocess
import sys

SCORING = """
from alignattn.evaluation.calibration.metric import CalibrationError

CalibrationError().compute(predictions=[[0.75, 0.25]], references=[0])
"""


def test_metrics_make_no_folder_in_the_users_home(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    subprocess.run([sys.executable, "-c", SCORING], check=True, env=kept | {"HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []

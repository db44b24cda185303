"""Plain fine-tuning on given answers, to compare Medusa-2 with: `medusa train --joint` where heads count nothing.

    python benchmarks/training/layers_alone.py MODEL -o OUT.gguf --data FILE --recipe R.toml

R.toml has `joint_weight = 1e-12`. The weights of the last step are written: `medusa train` would write those that bring
the most tokens per step, and these heads bring none.
"""

from __future__ import annotations

import argparse
from typing import Any

from medusa_cli.cli import app
from medusa_cli.training.backbone.fit import JointFit
from medusa_cli.training.phases import joint


class LayersAlone(JointFit):
    def _measured(self, evaluate: Any) -> float:
        super()._measured(evaluate)
        return float(self.step)


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole.add_argument("model")
    for option in ("-o", "--data", "--recipe"):
        whole.add_argument(option, required=True)
    whole.add_argument("-t", default="1")
    return whole


def main() -> None:
    given = parser().parse_args()
    joint.JointFit = LayersAlone  # type: ignore[misc]
    options = ["-o", given.o, "--joint", "--data", given.data, "--recipe", given.recipe, "-t", given.t]
    app(["train", given.model, *options], prog_name="medusa")


if __name__ == "__main__":
    main()

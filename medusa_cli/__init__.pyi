"""Public names and where they come from: types of what __init__.py loads when it is first used."""

from medusa_cli.api.acceleration import Acceleration as Acceleration
from medusa_cli.api.acceleration import accelerate as accelerate
from medusa_cli.api.answer import Answer as Answer
from medusa_cli.api.answer import Piece as Piece
from medusa_cli.api.answer import TokenChance as TokenChance
from medusa_cli.api.embedder import Embedder as Embedder
from medusa_cli.api.model import Model as Model
from medusa_cli.api.session import Session as Session
from medusa_cli.api.stream import AsyncStream as AsyncStream
from medusa_cli.api.stream import Stream as Stream
from medusa_cli.support.errors import MedusaError as MedusaError

__all__: list[str]
__version__: str

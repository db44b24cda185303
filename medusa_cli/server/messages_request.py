"""What requests to Anthropic's `/v1/messages` hold, and the same as a request for a chat completion."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from medusa_cli.decoding.thinking import REMEMBERED
from medusa_cli.server import known_fields
from medusa_cli.server.schemas import (
    MOST_STOPS,
    ONE_ERROR,
    Body,
    ChatRequest,
    Count,
    StopText,
    Strict,
    as_chat,
)

LACKING: known_fields.Lacking = {
    **known_fields.LACKING,
    **dict.fromkeys(("mcp_servers", "container", "output_format", "inference_geo"), ()),
}
SPARE = known_fields.IGNORED | {"context_management"}
OF_ANSWERS = frozenset(("max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k"))
"""Fields that count nothing."""
KEPT_EDITS = "clear_thinking_"
"""What clients ask for of earlier thinking: the template decides about that anyway."""


class Text(Strict):
    type: Literal["text"]
    text: str


class Thought(Strict):
    type: Literal["thinking"]
    thinking: str


class HiddenThought(Strict):
    type: Literal["redacted_thinking"]


class ToolUse(Strict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(Strict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[Text], ONE_ERROR] | None = None
    is_error: bool | None = None


Block = Annotated[Text | Thought | HiddenThought | ToolUse | ToolResult, Field(discriminator="type")]


class Turn(Strict):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], ONE_ERROR]


class Tool(Strict):
    type: Literal["custom"] | None = Field(None, description="Tools that a server would run are not supported.")
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(None, description="true: calls of it follow its schema.")


class Choice(Strict):
    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _is_named(self) -> Choice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name goes with the type tool, and only with that")
        return self

    def chat(self) -> Any:
        """The same as `tool_choice` of a chat completion."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class ThinkingConfig(Strict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None

    @model_validator(mode="after")
    def _budget(self) -> ThinkingConfig:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens goes with the type enabled, and only with that")
        return self


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")

    def chat(self) -> dict[str, Any]:
        """The same as `response_format` of a chat completion."""
        return {"type": "json_schema", "json_schema": {"schema": self.schema_}}


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: None = None


class CountRequest(Body):
    """`POST /v1/messages/count_tokens`."""

    model: str | None = Field(None, description="Ignored: the server has one model.")
    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[Text], ONE_ERROR] | None = None
    tools: Annotated[list[Tool], ONE_ERROR] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, data: Any) -> Any:
        management = data.get("context_management") if isinstance(data, dict) else None
        edits = management.get("edits") if isinstance(management, dict) else None
        for edit in edits if isinstance(edits, list) else []:
            if not (isinstance(edit, dict) and str(edit.get("type")).startswith(KEPT_EDITS)):
                raise ValueError("context_management is not supported: leave it out")
        return known_fields.supported(data, cls.model_fields, LACKING, SPARE | OF_ANSWERS)

    def as_chat(self, **more: Any) -> ChatRequest:
        """The same as a request for a chat completion."""
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": tool.strict,
                },
            }
            for tool in self.tools or []
        ]
        thinking, choice, output = self.thinking, self.tool_choice, self.output_config
        told: dict[str, Any] = {}
        if thinking is not None and thinking.type != "adaptive":
            told = {"thinking": thinking.type == "enabled", "think": thinking.budget_tokens}
        elif self.output_config is not None:
            told = {"reasoning_effort": self.output_config.effort}
        return as_chat(
            {
                "messages": [*system, *(message for turn in self.messages for message in _messages(turn))],
                "tools": tools or None,
                "tool_choice": choice.chat() if choice else None,
                "response_format": output.format.chat() if output and output.format else None,
                "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
                **told,
                **more,
            }
        )


class MessagesRequest(CountRequest):
    """`POST /v1/messages`."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None

    def chat(self) -> ChatRequest:
        """The same as a request for a chat completion."""
        same = {name: getattr(self, name) for name in ("max_tokens", "stream", "temperature", "top_p", "top_k")}
        return self.as_chat(stop=self.stop_sequences or None, **same)


def _text(content: str | list[Text] | None) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content or [])


def _messages(turn: Turn) -> list[dict[str, Any]]:
    """A turn as messages of a chat completion: results of tools are messages of their own."""
    blocks = [Text(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
    text = "".join(block.text for block in blocks if isinstance(block, Text))
    if turn.role == "assistant":
        calls = [_call(block) for block in blocks if isinstance(block, ToolUse)]
        thought = "".join(block.thinking for block in blocks if isinstance(block, Thought))
        return [{"role": "assistant", "content": text, REMEMBERED: thought or None, "tool_calls": calls or None}]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
        for block in blocks
        if isinstance(block, ToolResult)
    ]
    said = [{"role": "user", "content": text}] if text or not results else []
    return [*results, *said]


def _call(use: ToolUse) -> dict[str, Any]:
    function = {"name": use.name, "arguments": json.dumps(use.input, ensure_ascii=False)}
    return {"id": use.id, "type": "function", "function": function}

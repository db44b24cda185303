"""What requests to OpenAI's `/v1/responses` hold, and the same as a request for a chat completion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from medusa_cli.decoding.thinking import REMEMBERED
from medusa_cli.server import known_fields
from medusa_cli.server.schemas import ONE_ERROR, Body, ChatRequest, Count, Effort, Strict, as_chat

LACKING: known_fields.Lacking = {
    **known_fields.LACKING,
    **dict.fromkeys(("previous_response_id", "conversation", "prompt", "context_management"), ()),
    **dict.fromkeys(("background", "top_logprobs"), (False, 0)),
}
CHANCES = "message.output_text.logprobs"
SPARE = known_fields.IGNORED | {"stream_options"}


class Part(Strict):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"] = Field(
        description="Only text is supported, no images, files or audio."
    )
    text: str


Parts = str | Annotated[list[Part], ONE_ERROR]


class Said(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts


class Thought(Strict):
    type: Literal["reasoning"]
    content: Annotated[list[Part], ONE_ERROR] | None = None
    summary: Annotated[list[Part], ONE_ERROR] | None = None


class Called(Strict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class Returned(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: Parts


def _kind(item: Any) -> str:
    return str(item.get("type") or "message") if isinstance(item, dict) else str(getattr(item, "type", "message"))


Item = Annotated[
    Annotated[Said, Tag("message")]
    | Annotated[Thought, Tag("reasoning")]
    | Annotated[Called, Tag("function_call")]
    | Annotated[Returned, Tag("function_call_output")],
    Discriminator(_kind),
]


class Tool(Strict):
    type: Literal["function"] = Field(description="Tools that a server would run are not supported.")
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="true: calls of it follow its schema.")


class Reasoning(Strict):
    effort: Effort | None = None
    summary: str | None = Field(None, description="Ignored: the thinking comes as it is.")


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = Field(None, description="Schemas are always enforced.")
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def chat(self) -> dict[str, Any]:
        """The same as `response_format`."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_ or {}}}


class NamedTool(Strict):
    type: Literal["function"]
    name: str


class TextConfig(Strict):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(Body):
    """`POST /v1/responses`."""

    model: str | None = Field(None, description="Ignored: the server has one model.")
    input: str | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    tools: Annotated[list[Tool], ONE_ERROR] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, data: Any) -> Any:
        included = data.get("include") if isinstance(data, dict) else None
        if isinstance(included, list) and CHANCES in included:
            raise ValueError(f"include: {CHANCES} is not supported: leave it out")
        return known_fields.supported(data, cls.model_fields, LACKING, SPARE)

    def chat(self) -> ChatRequest:
        """The same as a request for a chat completion."""
        tools = [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools or []]
        choice: Any = self.tool_choice
        if isinstance(choice, NamedTool):
            choice = {"type": "function", "function": {"name": choice.name}}
        form = self.text.format.chat() if self.text and self.text.format else None
        same = ("stream", "temperature", "top_p", "parallel_tool_calls", "truncation")
        return as_chat(
            {
                "messages": self._messages(),
                "max_completion_tokens": self.max_output_tokens,
                "tools": tools or None,
                "tool_choice": choice,
                "response_format": form,
                "reasoning_effort": self.reasoning.effort if self.reasoning else None,
                **{name: getattr(self, name) for name in same},
            }
        )

    def _messages(self) -> list[dict[str, Any]]:
        items = [Said(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for item in items:
            _add(messages, item)
        return [one for one in messages if one["role"] != "assistant" or one["content"] or one.get("tool_calls")]


def _add(messages: list[dict[str, Any]], item: Said | Thought | Called | Returned) -> None:
    """Adds an item: a thinking, a text and calls of one answer are one message, and so are instructions in a row."""
    last: dict[str, Any] = messages[-1] if messages else {"role": "", "content": ""}
    if isinstance(item, Returned):
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
    elif isinstance(item, Said) and item.role != "assistant":
        role, text = item.role.replace("developer", "system"), _text(item.content)
        if role == last["role"] == "system" and len(messages) == 1:
            last["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    else:
        begins = last["role"] != "assistant" or bool(last.get("tool_calls") and not isinstance(item, Called))
        if begins or (isinstance(item, (Said, Thought)) and last["content"]):
            messages.append(last := {"role": "assistant", "content": ""})
        if isinstance(item, Thought):
            last[REMEMBERED] = _text(item.content or item.summary or [])
        elif isinstance(item, Called):
            function = {"name": item.name, "arguments": item.arguments}
            last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
        else:
            last["content"] = _text(item.content)


def _text(content: Parts) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)

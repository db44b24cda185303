// The way to the server: a conversation goes there, chunks of the answer come back.

/**
 * The chunks of an answer, as they come; before them {reading: {done, total}}, tokens of the prompt. Errors of the
 * server are thrown; `needsKey` tells that a key is missing.
 */
export async function* chunks(body, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) {
    const found = await response.json().catch(() => null);
    const error = new Error(found?.error?.message ?? `the server said ${response.status}`);
    error.needsKey = response.status === 401;
    throw error;
  }
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}

const READING = /^: reading (\d+) of (\d+) tokens$/;

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const reading = READING.exec(part);
      if (reading) yield { reading: { done: Number(reading[1]), total: Number(reading[2]) } };
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

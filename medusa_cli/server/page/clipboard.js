// Copying text. What a reader could not see is left out.

import { withoutUnseen } from "./text.js";

const SHOWN = 1500; // ms

/** Puts `text` into the clipboard, and says so on `button`. */
export async function copy(text, button) {
  const clean = withoutUnseen(text);
  // Browsers have the clipboard at this machine's own address, and behind TLS, alone.
  const done = navigator.clipboard ? await navigator.clipboard.writeText(clean).then(() => true, () => false) : old(clean);
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), SHOWN);
}

function old(text) {
  const box = document.createElement("textarea");
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  return done;
}

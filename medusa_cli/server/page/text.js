// Text as a reader must see it. Characters that show nothing, or that turn the reading order around, can make a text
// say one thing to the eye and another to a program: they are shown as marks, and left out of what is copied.

const INVISIBLE = /[[\p{Default_Ignorable_Code_Point}\p{Cc}\u2028\u2029\uFFF9-\uFFFB]--[\t\n\r]]/v;

// What comes first is meant well: emoji, a variant of one character, joiners within a script that is written joined.
const KEPT_OR_UNSEEN = new RegExp(
  String.raw`\p{RGI_Emoji}|\p{Emoji}[\uFE0E\uFE0F]|\p{sc=Han}[\u{E0100}-\u{E01EF}]` +
    String.raw`|[[\p{L}\p{M}]--[\p{sc=Latn}\p{sc=Grek}\p{sc=Cyrl}\p{sc=Hani}\p{sc=Hang}\p{sc=Zinh}]][\u200C\u200D]` +
    `|(?<unseen>${INVISIBLE.source})`,
  "gv",
);

export function make(tag, kind, ...content) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...content);
  return element;
}

export function hasUnseen(text) {
  if (!INVISIBLE.test(text)) return false;
  for (const match of text.matchAll(KEPT_OR_UNSEEN)) if (match.groups.unseen) return true;
  return false;
}

/** `text` for the clipboard. */
export function withoutUnseen(text) {
  return text.replace(KEPT_OR_UNSEEN, (found, ...rest) => (rest.at(-1).unseen ? "" : found));
}

/** `text` as nodes. A mark has no text of its own, its style sheet shows it: selecting leaves it out, too. */
export function textNodes(text) {
  if (!INVISIBLE.test(text)) return [text];
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(KEPT_OR_UNSEEN)) {
    if (!match.groups.unseen) continue;
    const mark = make("span", "unseen");
    mark.dataset.code = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    mark.title = "a character that cannot be seen";
    nodes.push(text.slice(from, match.index), mark);
    from = match.index + match[0].length;
  }
  nodes.push(text.slice(from));
  return nodes.filter((node) => node !== "");
}

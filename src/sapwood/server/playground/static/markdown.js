// Markdown of an answer as a tree of blocks. Texts are ranges of the source, so that every letter keeps its token;
// nothing is ever made from a string of HTML. Independent of the page.
const DEEPEST = 6; // lists and quotes inside each other; deeper ones are plain text
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+•]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const DASHES = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const SAFE = /^(https?:|mailto:)/i; // a link elsewhere is shown as its text
const BARE = /^https?:[/]{2}[^\s<>"'`\])]*[^\s<>"'`\]).,;:!?*_]/i;
const MARKS = ["**", "__", "~~", "*", "_"];
const TAGS = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };
const THOUGHT = /^\s*<think>([^]*?)(<\/think>|$)/; // reasoning before the answer
const WORD = /[\p{L}\p{N}]/u;

/** The blocks of a text; each has its kind, its range, and lines or blocks inside. */
export function parse(text) {
  const lines = [];
  for (let start = 0; start <= text.length;) {
    const found = text.indexOf("\n", start);
    const end = found < 0 ? text.length : found;
    lines.push({ start, end });
    start = end + 1;
  }
  const thought = text.match(THOUGHT);
  if (!thought) return blocks(text, lines, 0);
  const [from, to] = [thought[0].indexOf(">") + 1, thought[0].length - thought[2].length];
  const inside = within(lines, from, to), rest = within(lines, thought[0].length, text.length);
  const block = { kind: "thought", start: 0, end: thought[0].length, closed: Boolean(thought[2]), blocks: blocks(text, inside, 1) };
  return [block, ...blocks(text, rest, 0)];
}

/** The parts of lines inside a range. */
const within = (lines, from, to) => lines.filter(({ start, end }) => end >= from && start <= to)
  .map(({ start, end }) => ({ start: Math.max(start, from), end: Math.min(end, to) }));

const read = (text, { start, end }) => text.slice(start, end);
const blank = (text, line) => !read(text, line).trim();
const cut = (line, size) => ({ start: Math.min(line.start + size, line.end), end: line.end });
const indent = (text, line) => read(text, line).match(/^ */)[0].length;

function blocks(text, lines, depth) {
  const made = [];
  for (let at = 0; at < lines.length;) {
    if (blank(text, lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(text, lines, at, depth);
    block.start = lines[at].start;
    block.end = lines[next - 1].end;
    made.push(block);
    at = next;
  }
  return made;
}

function readBlock(text, lines, at, depth) {
  const line = read(text, lines[at]);
  const fence = line.match(FENCE);
  if (fence) return code(text, lines, at, fence);
  const heading = line.match(HEADING);
  if (heading) return [{ kind: "heading", level: heading[1].length, lines: [withoutHashes(text, cut(lines[at], heading[0].length))] }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(text, lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(text, lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length && DASHES.test(read(text, lines[at + 1])) && read(text, lines[at + 1]).includes("|")) return table(text, lines, at);
  return paragraph(text, lines, at, depth);
}

function withoutHashes(text, line) {
  const closing = read(text, line).match(/[ \t]+#+[ \t]*$/);
  return closing ? { start: line.start, end: line.end - closing[0].length } : line;
}

function code(text, lines, at, [, mark, language]) {
  const left = indent(text, lines[at]);
  const inside = [];
  for (let next = at + 1; next < lines.length; next += 1) {
    const line = read(text, lines[next]);
    const closing = line.trim();
    if (closing.length >= mark.length && closing === mark[0].repeat(closing.length)) return [{ kind: "code", language, lines: inside, closed: true }, next + 1];
    inside.push(cut(lines[next], Math.min(left, indent(text, lines[next]))));
  }
  return [{ kind: "code", language, lines: inside, closed: false }, lines.length];
}

function quote(text, lines, at, depth) {
  const inside = [];
  let next = at;
  for (; next < lines.length; next += 1) {
    const mark = read(text, lines[next]).match(QUOTE);
    if (!mark) break;
    inside.push(cut(lines[next], mark[0].length));
  }
  return [{ kind: "quote", blocks: blocks(text, inside, depth + 1) }, next];
}

function list(text, lines, at, depth) {
  const [, margin, first] = read(text, lines[at]).match(ITEM);
  const ordered = /\d/.test(first), kind = ordered ? first.at(-1) : "-";
  const items = [];
  let loose = false, next = at;
  while (next < lines.length) {
    const found = read(text, lines[next]).match(ITEM);
    if (!found || RULE.test(read(text, lines[next])) || Math.abs(found[1].length - margin.length) > 1) break;
    if ((/\d/.test(found[2]) ? found[2].at(-1) : "-") !== kind) break;
    const inner = found[0].length - (found[3].length > 4 ? found[3].length - 1 : 0);
    const inside = [cut(lines[next], found[0].length)];
    next += 1;
    for (; next < lines.length; next += 1) {
      const empty = blank(text, lines[next]), deep = indent(text, lines[next]) >= Math.min(inner, margin.length + 2);
      const beginsBlock = ITEM.test(read(text, lines[next])) || FENCE.test(read(text, lines[next])) || HEADING.test(read(text, lines[next]));
      const afterBlank = blank(text, lines[next - 1]);
      if (!empty && !deep && (beginsBlock || afterBlank)) break;
      inside.push(cut(lines[next], Math.min(inner, indent(text, lines[next]))));
    }
    const trailing = inside.length > 1 && blank(text, { ...inside.at(-1) });
    items.push(blocks(text, inside, depth + 1));
    loose ||= trailing && next < lines.length && ITEM.test(read(text, lines[next]));
  }
  return [{ kind: "list", ordered, first: ordered ? parseInt(first, 10) : 1, items, loose }, next];
}

function table(text, lines, at) {
  const aligns = cells(text, lines[at + 1]).map((cell) => {
    const mark = read(text, cell);
    return mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left";
  });
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && !blank(text, lines[next]) && read(text, lines[next]).includes("|"); next += 1) rows.push(cells(text, lines[next]));
  return [{ kind: "table", aligns, head: cells(text, lines[at]), rows }, next];
}

/** The ranges of a row's cells, without spaces around them. */
function cells(text, line) {
  const found = [];
  let start = line.start + read(text, line).match(/^\s*\|?/)[0].length;
  const end = line.end - read(text, line).match(/\|?\s*$/)[0].length;
  for (let place = start; place <= end; place += 1) {
    if (place < end && (text[place] !== "|" || text[place - 1] === "\\")) continue;
    const cell = text.slice(start, place);
    found.push({ start: start + cell.match(/^\s*/)[0].length, end: Math.max(start, place - cell.match(/\s*$/)[0].length) });
    start = place + 1;
  }
  return found;
}

function paragraph(text, lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && !blank(text, lines[next]) && !interrupts(read(text, lines[next]), depth)) next += 1;
  const inside = lines.slice(at, next).map((line) => cut(line, indent(text, line)));
  return [{ kind: "paragraph", lines: inside }, next];
}

function interrupts(line, depth) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  return depth < DEEPEST && (QUOTE.test(line) || /^ *([-*+•]|1[.)]) +\S/.test(line));
}

// ------------------------------------------------------------------------------------- inside a paragraph
/** Spans of these lines: { text: [offsets] }, { tag, spans } or { link, spans }. */
export function inline(text, lines) {
  let letters = "";
  const offsets = [];
  lines.forEach(({ start, end }, place) => {
    for (let at = start; at < end; at += 1) offsets.push(at);
    letters += text.slice(start, end);
    if (place < lines.length - 1) {
      letters += "\n";
      offsets.push(end);
    }
  });
  return new Inline(letters, offsets).spans(0, letters.length, 0);
}

class Inline {
  constructor(letters, offsets) {
    this.letters = letters;
    this.offsets = offsets;
    this.hopeless = new Map(); // mark -> the end of a range in which no closing one was found
  }

  spans(start, end, depth) {
    const made = [];
    let held = [];
    const flush = () => { if (held.length) made.push({ text: held }); held = []; };
    for (let at = start; at < end;) {
      const found = depth < DEEPEST ? this.special(at, end, depth) : null;
      if (!found) {
        held.push(this.offsets[at]);
        at += 1;
        continue;
      }
      if (found.escaped !== undefined) held.push(this.offsets[found.escaped]);
      else {
        flush();
        made.push(found.span);
      }
      at = found.next;
    }
    flush();
    return made;
  }

  special(at, end, depth) {
    const letter = this.letters[at];
    if (letter === "\\" && /[!-/:-@[-`{-~]/.test(this.letters[at + 1] ?? "") && at + 1 < end) return { escaped: at + 1, next: at + 2 };
    if (letter === "`") return this.code(at, end);
    if (letter === "[" || (letter === "!" && this.letters[at + 1] === "[")) return this.link(at, end, depth);
    if (letter === "h" || letter === "H") return this.bare(at, end);
    if (letter === "*" || letter === "_" || letter === "~") return this.emphasis(at, end, depth);
    return null;
  }

  code(at, end) {
    const size = this.letters.slice(at, end).match(/^`+/)[0].length;
    for (let place = at + size; place < end; place += 1) {
      if (this.letters[place] !== "`") continue;
      const run = this.letters.slice(place, end).match(/^`+/)[0].length;
      if (run !== size) {
        place += run - 1;
        continue;
      }
      const [from, to] = trimmed(this.letters, at + size, place);
      return { span: { tag: "code", spans: [{ text: this.offsets.slice(from, to) }] }, next: place + size };
    }
    return { span: { text: this.offsets.slice(at, at + size) }, next: at + size };
  }

  link(at, end, depth) {
    const open = this.letters[at] === "!" ? at + 1 : at;
    const close = this.closing(open, end);
    if (close < 0 || this.letters[close + 1] !== "(") return null;
    const target = this.letters.slice(close + 1, end).match(/^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^"'()]*["')])?\s*\)/);
    if (!target) return null;
    const spans = this.spans(open + 1, close, depth + 1);
    const next = close + 1 + target[0].length;
    return { span: SAFE.test(target[1]) ? { link: target[1], spans } : { tag: "span", spans }, next };
  }

  closing(open, end) {
    let deep = 0;
    for (let place = open; place < Math.min(end, open + 1000); place += 1) {
      if (this.letters[place] === "\\") place += 1;
      else if (this.letters[place] === "[") deep += 1;
      else if (this.letters[place] === "]" && (deep -= 1) === 0) return place;
    }
    return -1;
  }

  bare(at, end) {
    if (at > 0 && WORD.test(this.letters[at - 1])) return null;
    const found = this.letters.slice(at, Math.min(end, at + 2000)).match(BARE);
    if (!found) return null;
    const next = at + found[0].length;
    return { span: { link: found[0], spans: [{ text: this.offsets.slice(at, next) }] }, next };
  }

  emphasis(at, end, depth) {
    const mark = MARKS.find((one) => this.letters.startsWith(one, at) && at + one.length < end);
    if (!mark || /\s/.test(this.letters[at + mark.length])) return null;
    if (mark[0] === "_" && WORD.test(this.letters[at - 1] ?? " ")) return null;
    const close = this.closingMark(mark, at + mark.length + 1, end);
    if (close < 0) return null;
    return { span: { tag: TAGS[mark], spans: this.spans(at + mark.length, close, depth + 1) }, next: close + mark.length };
  }

  closingMark(mark, from, end) {
    if ((this.hopeless.get(mark) ?? -1) >= end) return -1;
    for (let place = from; place < end; place += 1) {
      const letter = this.letters[place];
      if (letter === "\\") place += 1;
      else if (letter === "`") {
        const close = this.letters.indexOf("`", place + 1);
        if (close > 0 && close < end) place = close;
      } else if (this.letters.startsWith(mark, place) && place + mark.length <= end && this.closes(mark, place, end)) return place;
    }
    this.hopeless.set(mark, end);
    return -1;
  }

  closes(mark, place, end) {
    if (/\s/.test(this.letters[place - 1])) return false;
    const after = place + mark.length < end ? this.letters[place + mark.length] : " ";
    if (mark.length === 1 && (after === mark || this.letters[place - 1] === mark)) return false; // part of a longer mark
    return mark[0] !== "_" || !WORD.test(after);
  }
}

function trimmed(letters, from, to) {
  const spaced = letters[from] === " " && letters[to - 1] === " " && letters.slice(from, to).trim();
  return spaced ? [from + 1, to - 1] : [from, to];
}

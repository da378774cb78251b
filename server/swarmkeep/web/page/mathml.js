// Formulas as MathML, which browsers draw themselves: without styles and fonts of its own.

import { sanitized } from "./highlighting.js";
import "./katex.min.js";

// Nothing that leads elsewhere, and nothing larger than the page.
const OPTIONS = { output: "mathml", throwOnError: true, strict: "ignore", trust: false, maxSize: 20, maxExpand: 200 };
const ALLOWED = {
  ALLOWED_TAGS: ["math", "mrow", "mi", "mo", "mn", "mtext", "ms", "mspace", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "mfrac", "msqrt", "mroot", "mstyle", "mpadded", "mphantom", "menclose", "mtable", "mtr", "mlabeledtr", "mtd"],
  ALLOWED_ATTR: ["display", "mathvariant", "scriptlevel", "displaystyle", "fence", "stretchy", "separator", "lspace", "rspace", "minsize", "maxsize", "accent", "accentunder", "linethickness", "rowspacing", "columnalign", "columnspacing", "columnlines", "rowlines", "notation", "width", "height", "depth", "voffset", "movablelimits", "symmetric", "largeop"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// The formula as an element; null where it cannot be read.
export function drawMath(tex, display) {
  try {
    const markup = globalThis.katex.renderToString(tex, { ...OPTIONS, displayMode: display });
    // What it was written as stands beside it, and some attributes would be styles: the policy refuses those.
    const bare = markup.replaceAll(/<annotation[^>]*>[^<]*<\/annotation>/g, "").replaceAll(/ style="[^"]*"/g, "").replaceAll(/<\/?semantics>/g, "");
    return sanitized(bare, ALLOWED).querySelector("math");
  } catch {
    return null;
  }
}

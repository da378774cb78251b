// The one way from markup to elements: what is not allowed is left out.

import "./purify.min.js";

export const sanitized = (markup, allowed) => globalThis.DOMPurify.sanitize(markup, allowed);

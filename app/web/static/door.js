// The door of the control room: its words, and whether the token that was shown was wrong.

import { furnish } from "./room.js";

furnish("default");
const wrong = document.getElementById("wrong");
if (wrong !== null) {
  wrong.hidden = !new URLSearchParams(location.search).has("wrong");
  if (!wrong.hidden) {
    document.getElementById("token").setAttribute("aria-invalid", "true");
    document.getElementById("token").setAttribute("aria-describedby", "wrong");
  }
}

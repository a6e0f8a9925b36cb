// Drafts: what is being written is kept in the browser until it is sent, also when the session ends.
import type { Session } from "./api";

type Field = HTMLInputElement | HTMLTextAreaElement;

function keyOf(session: Session, name: string): string {
  return `yamamori-draft ${session.user ?? ""} ${name}`;
}

export function keepDraft(field: Field, session: Session, name: string): void {
  const key = keyOf(session, name);
  field.value = localStorage.getItem(key) ?? "";
  field.addEventListener("input", () => (field.value ? localStorage.setItem(key, field.value) : localStorage.removeItem(key)));
}

// What was written since it was sent stays.
export function discardDraft(field: Field, session: Session, name: string, sent: string): void {
  if (field.value !== sent) return;
  field.value = "";
  localStorage.removeItem(keyOf(session, name));
}

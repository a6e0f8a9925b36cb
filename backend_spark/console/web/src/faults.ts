// What a node reports as wrong: its sensors, rules, settings and disk.
import { el } from "./dom";
import { currentLanguage } from "./i18n";
import { sensorName } from "./names";

export interface Fault {
  name: string;
  text: string;
}

// First words of the texts that nodes send; Japanese.
const WORDS: [string, string][] = [
  ["not opened", "開けない"],
  ["no answer", "応答なし"],
  ["hangs", "応答が終わらない"],
  ["wrong chip", "別の素子"],
  ["not converted", "変換されない"],
  ["disconnected", "断線・未接続"],
  ["shorted", "短絡"],
  ["stuck", "固着"],
  ["flaps", "接点が乱れる"],
  ["loop broken", "電流ループの断線"],
  ["loop fault", "電流ループの異常"],
  ["saturated", "測定範囲を超過"],
  ["noisy", "ノイズが大きい"],
  ["implausible", "あり得ない値"],
  ["doubtful", "疑わしい値"],
  ["safe mode", "セーフモード"],
  ["the disk cannot be written", "メモリーカードに書き込めない"],
  ["queue.path cannot be written", "送信待ちのファイルに書き込めない"],
];

function subject(name: string): string {
  const [sensor = "", part] = name.split(/\/(?=[^/]*$)/);
  const isJapanese = currentLanguage() === "ja";
  if (sensor === "config/mistake") return isJapanese ? `設定の誤り ${part}` : `Mistake ${part} in the settings`;
  if (name === "config/health") return isJapanese ? "設定" : "Settings";
  if (name === "disk/health") return isJapanese ? "メモリーカード" : "Disk";
  if (part === "rule") return `${sensorName(sensor)}${isJapanese ? "の判定規則" : ", rule"}`;
  return sensorName(sensor);
}

// The text of the node stays, for whoever repairs it.
export function faultLine({ name, text }: Fault): HTMLElement {
  const word = currentLanguage() === "ja" && WORDS.find(([known]) => text === known || text.startsWith(`${known}:`) || text.startsWith(`${known},`));
  return el("div", { class: "fault", "data-fault": name }, `${subject(name)}: `, word ? `${word[1]} ` : null, el("bdi", {}, word ? `(${text})` : text));
}

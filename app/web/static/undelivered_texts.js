// The words of the page of events that did not leave, beside those that it shares with the control room.

import { texts as room } from "./control_texts.js";
import { choose } from "./language.js";

const english = {
  words: {
    events: "Events",
    undelivered: "Events that did not reach the shop",
    order: "Order",
    state: "State",
    receiver: "Receiver",
    tries: "Tries",
    since: "Since",
    why: "Why",
    tryAgain: "Try again",
    replayDead: "Try all of these again",
    replaySince: "Send events again",
    sendAgain: "Send again",
    sendAgainHint: "For a shop that has lost some: all events since a moment are sent once more. It knows each by its id.",
  },
  waits: (time) => `waits, next try ${time}`,
  dead: "given up",
  again: (order) => `Try again ${order}`,
  allReceivers: "all",
  noReceiver: "No webhook is set: the shop's back end reads its events itself.",
  undelivered: (waiting, dead, more) => {
    if (waiting + dead === 0) return "All events have reached the shop.";
    const orders = waiting === 1 ? "The shop refuses an event of 1 order, whose later events wait behind it." : `The shop refuses an event of each of ${waiting} orders; their later events wait behind it.`;
    const given = dead === 1 ? "1 event was given up." : `${dead} events were given up.`;
    return [waiting > 0 && orders, dead > 0 && given, more && "The first are shown."].filter(Boolean).join(" ");
  },
  replayed: (items) => (items ? `Events of ${items} are sent again within some seconds.` : "There is nothing to try again."),
};

const chinese = {
  words: {
    events: "事件",
    undelivered: "未送达商店的事件",
    order: "订单",
    state: "状态",
    receiver: "接收方",
    tries: "尝试次数",
    since: "自",
    why: "原因",
    tryAgain: "重试",
    replayDead: "以上全部重试",
    replaySince: "重新发送事件",
    sendAgain: "重新发送",
    sendAgainHint: "商店丢失事件时使用：自某一时刻起的全部事件再发一次。每个事件都有编号，不会重复计入。",
  },
  waits: (time) => `等待中，下次尝试 ${time}`,
  dead: "已放弃",
  again: (order) => `重试 ${order}`,
  allReceivers: "全部",
  noReceiver: "未设置接收方：由商店后端自行读取事件。",
  undelivered: (waiting, dead, more) => {
    if (waiting + dead === 0) return "所有事件都已送达商店。";
    return [waiting > 0 && `商店拒收 ${waiting} 个订单的事件，其后的事件也在等待。`, dead > 0 && `已放弃 ${dead} 个事件。`, more && "仅显示最前面的。"].filter(Boolean).join("");
  },
  replayed: (items) => (items ? `${items} 的事件将在数秒内重发。` : "没有可重试的内容。"),
};

export const texts = choose({ en: english, zh: chinese });
Object.assign(room.words, texts.words);
room.title = texts.words.events;

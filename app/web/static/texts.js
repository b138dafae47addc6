// Every word of the shop, in each language that it speaks; the browser's wish decides, or ?lang=zh.

const english = {
  language: "en",
  title: "Flash sale",
  item: "Today's offer",
  ofTotal: (total) => `of ${total} left`,
  noSuchItem: "No such item",
  phases: {
    unknown: "One moment",
    missing: "There is nothing for sale under this name",
    before: "Starts in",
    open: "On sale now",
    closing: "Ends in",
    sold_out: "Sold out",
    ended: "The sale has ended",
  },
  remarks: {
    open: "First come, first served",
    sold_out: "Units may come back",
  },
  buttons: {
    unknown: "One moment …",
    missing: "No such item",
    before: "Not open yet",
    open: "Buy one",
    sold_out: "Sold out",
    ended: "Ended",
    pressed: "One moment …",
    unanswered: "Ask again",
  },
  news: {
    before: "The sale has not started yet.",
    open: "The sale has started.",
    again: "There are units again.",
    sold_out: "Sold out.",
    ended: "The sale has ended.",
    missing: "There is nothing for sale under this name any more.",
    copied: "Copied.",
  },
  hint: "One press buys one unit. A double click counts once.",
  outcomes: {
    sold: ["It's yours!", "Your order number:"],
    replayed: ["It's yours!", "Your press had counted already, once. Your order number:"],
    sold_out: ["Sold out", "Somebody was faster. If units come back, the button opens again."],
    limit_reached: ["You have your share", "One buyer can't have more than you have bought."],
    not_started: ["Not yet", "The sale has not started by our clock, which the countdown follows again."],
    ended: ["Too late", "The sale has ended. Nothing was bought."],
    unknown: ["We don't know yet", "Nobody answered. Press again to ask: it still counts once."],
    problem: ["That did not work"],
  },
  retrying: (attempt, tries) => ["No answer yet", `Sending the same press again, ${attempt} of ${tries}. It counts once.`],
  orders: "Your orders",
  copy: "Copy",
  copied: "Copied",
  copyOrder: (order) => `Copy order number ${order}`,
  connection: { live: "live", asking: "every few seconds", lost: "connection lost, trying again" },
  days: (days) => `${days} d `,
};

const chinese = {
  language: "zh-Hans",
  title: "限时秒杀",
  item: "今日特惠",
  ofTotal: (total) => `件剩余，共 ${total} 件`,
  noSuchItem: "没有这件商品",
  phases: {
    unknown: "请稍候",
    missing: "此名称下没有在售商品",
    before: "距开始",
    open: "正在热卖",
    closing: "距结束",
    sold_out: "已售罄",
    ended: "活动已结束",
  },
  remarks: {
    open: "先到先得",
    sold_out: "可能会补货",
  },
  buttons: {
    unknown: "请稍候……",
    missing: "没有这件商品",
    before: "尚未开始",
    open: "立即抢购",
    sold_out: "已售罄",
    ended: "已结束",
    pressed: "请稍候……",
    unanswered: "再问一次",
  },
  news: {
    before: "活动尚未开始。",
    open: "抢购开始了。",
    again: "又有货了。",
    sold_out: "已售罄。",
    ended: "活动已结束。",
    missing: "此名称下已没有在售商品。",
    copied: "已复制。",
  },
  hint: "按一次买一件，双击也只算一次。",
  outcomes: {
    sold: ["抢到了！", "您的订单号："],
    replayed: ["抢到了！", "您刚才那一次已经算数，只算一次。您的订单号："],
    sold_out: ["已售罄", "有人比您快了一步。如有补货，按钮会再次开放。"],
    limit_reached: ["已达限购数量", "每位买家的购买数量有限，您已买满。"],
    not_started: ["还没开始", "以我们的时钟为准，活动尚未开始；倒计时已重新校准。"],
    ended: ["来晚了", "活动已结束，没有购买任何商品。"],
    unknown: ["暂时还不知道结果", "没有收到答复。请再按一次询问结果，仍然只算一次。"],
    problem: ["没有成功"],
  },
  retrying: (attempt, tries) => ["还没有答复", `正在重发同一次请求（第 ${attempt} 次，共 ${tries} 次），只算一次。`],
  orders: "您的订单",
  copy: "复制",
  copied: "已复制",
  copyOrder: (order) => `复制订单号 ${order}`,
  connection: { live: "实时更新", asking: "每隔几秒更新", lost: "连接中断，正在重试" },
  days: (days) => `${days} 天 `,
};

function wished() {
  const languages = { en: english, zh: chinese };
  const asked = new URLSearchParams(location.search).get("lang");
  if (Object.hasOwn(languages, asked)) return { ...languages[asked], locale: asked };
  const locale = navigator.languages.find((one) => Object.hasOwn(languages, one.slice(0, 2))) ?? "en";
  return { ...languages[locale.slice(0, 2)], locale };
}

/** The words, and `locale`: how dates and numbers are written. */
export const texts = wished();

// The words of the page that reconciles, beside those that it shares with the control room.

import { texts as room } from "./control_texts.js";
import { choose } from "./language.js";

const english = {
  words: {
    reconcile: "Reconcile",
    give: "The provider's list beside the orders",
    giveHint: "Each charge and each refund is compared once. Nothing is changed.",
    chooseFile: "Choose a file, or drop it here",
    columns: "CSV with payment_ref, kind, amount, currency; Stripe's itemized report; or JSON Lines. 16 MB at most.",
    since: "the list begins (all without)",
    compareFile: "Compare",
    askStripe: "Ask Stripe",
    currency: "Currency",
    chargedThere: "Charged there",
    paidHere: "Paid here",
    backThere: "Given back there",
    backHere: "Given back here",
    owed: "To give back",
    differences: "What differs",
    cause: "Cause",
    payment: "Payment",
    order: "Order",
    there: "There",
    here: "Here",
    difference: "Difference",
  },
  causes: {
    no_order: "paid, and no order",
    no_payment: "an order, and no payment",
    amount: "other amounts",
    currency: "other currencies",
    twice: "charged twice",
    given_back_there: "given back there only",
    given_back_here: "given back here only",
  },
  allCauses: "All",
  noCurrency: "none",
  agrees: "Each payment is where it should be.",
  differ: (count, said) => (count === 1 ? "1 payment differs." : `${said} payments differ.`),
  read: (lines) => `${lines} lines of the provider's were read.`,
  first: (count) => `The first ${count} are shown.`,
  noFile: "Choose the provider's list first.",
  tooLarge: "The file is larger than 16 MB: split it, or use seckill payments reconcile.",
};

const chinese = {
  words: {
    reconcile: "对账",
    give: "支付平台的账单与订单",
    giveHint: "逐笔核对每一次收款和退款，不作任何改动。",
    chooseFile: "选择文件，或拖到这里",
    columns: "CSV（payment_ref、kind、amount、currency）、Stripe 的明细报表或 JSON Lines，最大 16 MB。",
    since: "账单起始时间（留空为全部）",
    compareFile: "核对",
    askStripe: "向 Stripe 查询",
    currency: "币种",
    chargedThere: "平台收款",
    paidHere: "订单收款",
    backThere: "平台退款",
    backHere: "订单退款",
    owed: "待退款",
    differences: "差异",
    cause: "原因",
    payment: "付款",
    order: "订单",
    there: "平台",
    here: "订单",
    difference: "差额",
  },
  causes: {
    no_order: "有付款，无订单",
    no_payment: "有订单，无付款",
    amount: "金额不符",
    currency: "币种不符",
    twice: "重复收款",
    given_back_there: "仅平台已退",
    given_back_here: "仅订单已退",
  },
  allCauses: "全部",
  noCurrency: "无",
  agrees: "每笔付款都对得上。",
  differ: (_, said) => `${said} 笔付款不符。`,
  read: (lines) => `已读取账单 ${lines} 行。`,
  first: (count) => `仅显示前 ${count} 笔。`,
  noFile: "请先选择账单文件。",
  tooLarge: "文件超过 16 MB：请拆分，或使用 seckill payments reconcile。",
};

export const texts = choose({ en: english, zh: chinese });
Object.assign(room.words, texts.words);
room.title = texts.words.reconcile;

// The words of a rehearsal, beside those of the control room.

import { texts as room } from "./control_texts.js";
import { choose } from "./language.js";

const english = {
  words: {
    story: "What happened",
    rehearsal: "Rehearsal",
    showMe: "Show me",
    rush: "Rush",
    over: "over seconds",
    send: "Send buyers",
    pause: "Pause the holder",
    pauseFor: "for seconds",
    pauseIt: "Pause",
    nobodyBuys: "Nobody buys at the moment. It waits for a purchase for up to a minute.",
    sendRush: "Send the rush",
  },
  showHint: (guarded) =>
    guarded
      ? "Buyers come, the selling instance is stopped, and still nothing is sold twice. See why."
      : "Buyers come, the selling instance is stopped, and units are sold twice: nothing guards the store. See how.",
  showRestocks: (buyers, left) => `First the stock is set to ${buyers}, one for each buyer (${left} now).`,
  showSells: (buyers) => `${buyers} units are sold by it.`,
  showNeedsSale: "Nothing is sold at the moment: the sale must be on.",
  pauseHint: (guarded) =>
    `It stops before its next write, for longer than its lease. Watch the late write be ${guarded ? "refused" : "taken: nothing guards the store"}.`,
  rushed: (buyers, instances) => `${buyers} buyers are on their way to ${instances}.`,
  pausing: (instance, span) => `${instance} will stand still for ${span} before its next write.`,
  story: {
    titles: {
      buyers: "Buyers come.",
      paused: "The holder stands still.",
      ran_out: "Its lease runs out.",
      overtaken: "Another one takes over.",
      end: "It wakes up and writes.",
    },
    sentences: {
      buyers: (buyers, instances) => `${buyers} people want one unit each, at ${instances}. Only the instance that holds the lock may sell, so they take turns.`,
      paused: (instance, token, span) => `${instance} has the lock, with token ${token}, and has decided who gets a unit. For ${span} it does not write that down.`,
      ranOut: (instance, ttl) => `The lock is lent for ${ttl} at a time, and nobody renews it for ${instance}. It does not know.`,
      overtaken: (instance, token) => `${instance} has the lock now, with the higher token ${token}, and goes on selling.`,
      woke: (instance, token) => `${instance} believes that it still has the lock, and sends its write with token ${token}.`,
      refused: "The store refused it: it had seen a higher token already. Nothing was oversold. The guard worked.",
      stillItsOwn: "The store took it, and rightly: nobody else had had the lock meanwhile.",
      oversold: (units) => `The store took it. Nothing guards it: ${units} units too many are sold, or will be. The books don't add up. That is what the fence is for.`,
      taken: "The store took it, although another one had the lock. Nothing guards it: what was sold meanwhile is forgotten. That is what the fence is for.",
    },
  },
};

const chinese = {
  words: {
    story: "发生了什么",
    rehearsal: "演练",
    showMe: "演示给我看",
    rush: "抢购",
    over: "历时（秒）",
    send: "派出买家",
    pause: "暂停持有者",
    pauseFor: "时长（秒）",
    pauseIt: "暂停",
    nobodyBuys: "目前没有人购买。最多等待一分钟。",
    sendRush: "派出买家",
  },
  showHint: (guarded) =>
    guarded
      ? "买家来抢购，正在销售的实例停住，但没有一件被卖两次。一步步看原因。"
      : "买家来抢购，正在销售的实例停住，商品被卖两次：存储没有保护。一步步看经过。",
  showRestocks: (buyers, left) => `先把库存设为 ${buyers} 件，每位买家一件（现有 ${left} 件）。`,
  showSells: (buyers) => `将售出 ${buyers} 件。`,
  showNeedsSale: "目前不在销售：活动须正在进行。",
  pauseHint: (guarded) => `它在下一次写入前停住，比租约更久。请看迟到的写入如何被${guarded ? "拒绝" : "接受：存储没有保护"}。`,
  rushed: (buyers, instances) => `${buyers} 位买家正前往 ${instances}。`,
  pausing: (instance, span) => `${instance} 将在下一次写入前停住 ${span}。`,
  story: {
    titles: {
      buyers: "买家来了。",
      paused: "持有者停住了。",
      ran_out: "它的租约到期。",
      overtaken: "另一个实例接管。",
      end: "它醒来并写入。",
    },
    sentences: {
      buyers: (buyers, instances) => `${buyers} 位买家各要一件，来到 ${instances}。只有持有锁的实例可以销售，所以它们轮流进行。`,
      paused: (instance, token, span) => `${instance} 持有锁（令牌 ${token}），停住 ${span}：它已决定谁买到，但还没有写入。`,
      ranOut: (instance, ttl) => `锁每次只借出 ${ttl}，没有人为 ${instance} 续租，而它并不知道。`,
      overtaken: (instance, token) => `锁现在归 ${instance}，令牌更大（${token}），它继续销售。`,
      woke: (instance, token) => `${instance} 以为自己仍持有锁，发出令牌 ${token} 的写入。`,
      refused: "存储拒绝了它：已见过更大的令牌。没有超卖，栅栏起了作用。",
      stillItsOwn: "存储接受了它，这是对的：其间没有别人得到过锁。",
      oversold: (units) => `存储接受了它。没有任何保护：多卖了（或将多卖）${units} 件，账目不符。这正是栅栏的用途。`,
      taken: "存储接受了它，尽管锁已归别人。没有任何保护：其间售出的记录被覆盖。这正是栅栏的用途。",
    },
  },
};

export const texts = choose({ en: english, zh: chinese });
Object.assign(room.words, texts.words);

#include "launcher/core/diagnosis/hang_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>

#include "launcher/core/diagnosis/python_stack.hpp"
#include "rendezvous/core/diagnosis/gathered_looks.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

std::string whole_seconds(Duration duration) {
  return fmt::format("{} s", std::chrono::duration_cast<std::chrono::seconds>(duration).count());
}

/// `4.0 MiB float32`; empty for a barrier, which has no elements.
std::string amount_text(std::int64_t elements, std::int64_t bytes, const std::string& dtype) {
  if (elements <= 0) return {};
  const std::string size = bytes >= 0 ? bytes_text(bytes) : fmt::format("{} elements", elements);
  return fmt::format("{}{}{}", size, dtype.empty() ? "" : " ", printable(dtype));
}

std::string group_text(const AwaitedCollective& call) {
  return call.description.empty() ? "group " + printable(call.group) : printable(call.description);
}

/// `all_reduce #1234 (default_pg, 4.0 MiB float32)`
std::string call_text(const AwaitedCollective& call) {
  const std::string amount = amount_text(call.elements, call.bytes, call.dtype);
  return fmt::format("{} #{} ({}{}{})", call.operation.empty() ? "collective" : printable(call.operation), call.number,
                     group_text(call), amount.empty() ? "" : ", ", amount);
}

const RankLook* look_of(const HangReport& told, Rank rank) {
  const auto found = std::ranges::lower_bound(told.looks, rank, {}, &RankLook::rank);
  return found != told.looks.end() && found->rank == rank ? &*found : nullptr;
}

/// `rank 3 on nodeb`; several only where they have one host in common.
std::string placed_text(const HangReport& told, std::span<const Rank> ranks) {
  std::string host;
  for (const Rank rank : ranks) {
    const RankLook* const look = look_of(told, rank);
    if (!look || look->host.empty() || (!host.empty() && host != look->host)) {
      host.clear();
      break;
    }
    host = look->host;
  }
  const std::string who = ranks_text(RankSet{{ranks.begin(), ranks.end()}});
  return host.empty() ? who : fmt::format("{} on {}", who, printable(host));
}

/// `rank 3 on nodeb broadcast (16 B int64)`
std::string side_text(const HangReport& told, const OperationSide& side) {
  const std::string amount = amount_text(side.elements, side.bytes, side.dtype);
  const std::string sizes = side.sizes.empty() || side.elements <= 0 ? "" : " " + printable(side.sizes);
  return fmt::format("{} {}{}{}{}{}", placed_text(told, side.ranks.below(looked_ranks_max)),
                     side.operation.empty() ? "another" : printable(side.operation), sizes, amount.empty() ? "" : " (",
                     amount, amount.empty() ? "" : ")");
}

std::string mismatch_text(const HangReport& told, const AwaitedCollective& call) {
  std::string text = fmt::format("as #{} of {} ", call.number, group_text(call));
  for (std::size_t i = 0; i < call.operations.size(); ++i) {
    text += (i == 0 ? "" : ", ") + side_text(told, call.operations[i]);
  }
  return text;
}

bool is_awaited(const HangVerdict& verdict) { return verdict.collective && !verdict.collective->waiting.empty(); }

/// `; ranks 0-2 wait for it`
std::string waiting_text(const HangVerdict& verdict) {
  if (!is_awaited(verdict)) return {};
  const bool one_waits = verdict.collective->waiting.size() == 1;
  return fmt::format("; {} {} for {}", ranks_text(verdict.collective->waiting), one_waits ? "waits" : "wait",
                     verdict.culprits.size() == 1 ? "it" : "them");
}

/// Whether that holds of all culprits.
bool are_all(const HangReport& told, const auto& holds) {
  const std::vector<Rank>& culprits = told.verdict->culprits;
  return !culprits.empty() && std::ranges::all_of(culprits, holds);
}
bool are_unseen(const HangReport& told) {
  return are_all(told, [&](Rank rank) { return told.verdict->unseen.contains(rank); });
}
bool have_ended(const HangReport& told) {
  return are_all(told, [&](Rank rank) {
    const RankLook* const look = look_of(told, rank);
    return look && has_ended(*look);
  });
}

/// What is the matter, without who waits.
std::string_view matter(const HangReport& told) {
  const bool one = told.verdict->culprits.size() == 1;
  if (are_unseen(told)) return one ? "was not seen" : "were not seen";
  if (have_ended(told)) return one ? "has ended" : "have ended";
  switch (told.verdict->kind) {
    case HangKind::debugged:
      return one ? "is debugged" : "are debugged";
    case HangKind::raised:
      return one ? "has raised an exception and does not end" : "have raised exceptions and do not end";
    case HangKind::stopped:
      return one ? "is stopped" : "are stopped";
    case HangKind::stuck:
      return one ? "is stuck" : "are stuck";
    case HangKind::busy:
      return one ? "is busy" : "are busy";
    case HangKind::order:
      return one ? "waits for itself" : "wait for each other";
    case HangKind::mismatch:
    case HangKind::network:
      break;
  }
  return {};
}

HangWords verdict_words(const HangReport& told, const HangVerdict& verdict) {
  const std::string call = verdict.collective ? call_text(*verdict.collective) : "";
  if (verdict.kind == HangKind::mismatch && verdict.collective) {
    return {"ranks do not do the same", mismatch_text(told, *verdict.collective)};
  }
  if (verdict.kind == HangKind::network) return {"all ranks are in a collective, and the network brings nothing", call};
  const std::string who = placed_text(told, verdict.culprits);
  if (verdict.kind == HangKind::order) {
    return {fmt::format("{} {}", who, matter(told)), call.empty() ? "" : "one in " + call};
  }
  return {fmt::format("{} {}{}", who, matter(told), waiting_text(verdict)), is_awaited(verdict) ? call : ""};
}

/// What a rank does, as far as it makes ranks the same: not what its call is about, for each has a peer of its own.
std::string doing_alike(const RankLook& look) {
  std::string text = doing_text(look);
  constexpr std::string_view about = " of ";
  if (look.seen) text.resize(std::min(text.find(about), text.size()));
  return text;
}

/// Ranks that do the same.
struct Block {
  std::vector<const RankLook*> looks;
};

bool alike(const RankLook& left, const RankLook& right) {
  return left.seen == right.seen && left.frames == right.frames && left.native == right.native &&
         left.raised_ns.has_value() == right.raised_ns.has_value() && doing_alike(left) == doing_alike(right);
}

/// In the order of their first ranks, at most told_blocks_max; adds the ranks beyond to `left_out`.
std::vector<Block> blocks_of(std::span<const RankLook* const> looks, std::size_t& left_out) {
  std::vector<Block> blocks;
  for (const RankLook* const look : looks) {
    const auto same = std::ranges::find_if(blocks, [&](const Block& each) { return alike(*each.looks[0], *look); });
    if (same != blocks.end()) {
      same->looks.push_back(look);
    } else if (blocks.size() < told_blocks_max) {
      blocks.push_back({{look}});
    } else {
      ++left_out;
    }
  }
  return blocks;
}

std::string headline(const Block& block) {
  const RankLook& first = *block.looks[0];
  const std::string raised = first.raised_ns ? ", has raised an exception" : "";
  if (block.looks.size() == 1) {
    const std::string host = first.host.empty() ? "" : ", " + printable(first.host);
    const std::string pid = first.pid == 0 ? "" : fmt::format(", pid {}", first.pid);
    return fmt::format("  rank {}{}{}: {}{}", first.rank.value(), host, pid, doing_text(first), raised);
  }
  std::vector<Rank> ranks;
  for (const RankLook* const look : block.looks) ranks.push_back(look->rank);
  const std::string whole = doing_text(first);
  const bool same = std::ranges::all_of(block.looks, [&](const RankLook* look) { return doing_text(*look) == whole; });
  return fmt::format("  {}: {}{}", ranks_text(RankSet{std::move(ranks)}), same ? whole : doing_alike(first), raised);
}

void add_block(std::vector<std::string>& lines, const Block& block) {
  lines.push_back(headline(block));
  const RankLook& look = *block.looks[0];
  for (std::size_t i = 0; i < std::min(look.native.size(), told_frames_max); ++i) {
    lines.push_back("    " + printable(look.native[i]));
  }
  for (const StackFrame& frame : told_frames(look.frames)) lines.push_back("    " + frame_text(frame));
}

std::string_view why_spared(HangSpared spared) {
  switch (spared) {
    case HangSpared::nobody:
      return {};
    case HangSpared::debugged:
      return "who is debugged is left alone";
    case HangSpared::busy:
      return "who is busy is left alone";
    case HangSpared::foreign:
      return "some ranks are not ours";
    case HangSpared::unseen:
      return "who was not seen is left alone";
    case HangSpared::doubtful:
      return "some ranks move; they are looked at once more";
  }
  return {};
}

std::string action_text(const HangReport& told) {
  constexpr std::string_view names[] = {"report", "abort", "restart"};
  const std::string_view option = names[static_cast<std::size_t>(told.on_hang)];
  if (told.action == HangAction::abort) return fmt::format("the job is ended (--on-hang={})", option);
  if (told.action == HangAction::restart) return fmt::format("the workers are started again (--on-hang={})", option);
  const std::string_view reason = why_spared(told.spared);
  return fmt::format("nothing was done (--on-hang={}{}{})", option, reason.empty() ? "" : ": ", reason);
}

bool is_culprit(const HangReport& told, Rank rank) {
  return told.verdict && std::ranges::binary_search(told.verdict->culprits, rank);
}

}  // namespace

std::string ranks_text(const RankSet& ranks) {
  const std::string all = to_text(ranks);
  std::string_view text = all;
  if (text.size() > told_ranks_bytes_max) text = text.substr(0, text.rfind(',', told_ranks_bytes_max));
  const bool whole = text.size() == all.size();
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", text,
                     whole ? "" : fmt::format("… ({} in all)", ranks.size()));
}

std::string doing_text(const RankLook& look) {
  if (!look.seen) return "not seen";
  if (!look.kernel.empty()) return printable(look.kernel);
  if (has_ended(look)) return "ended";
  if (look.state == state_stopped) return "stopped";
  return look.moving ? "running" : "sleeping";
}

HangWords hang_words(const HangReport& told) {
  const std::string step =
      told.verdict && told.verdict->last_step ? fmt::format(", last step {}", *told.verdict->last_step) : std::string{};
  const std::string front = told.asked ? "What the ranks do" : "No progress for " + whole_seconds(told.silence);
  HangWords words = told.verdict ? verdict_words(told, *told.verdict) : HangWords{"they get on", ""};
  words.ours = fmt::format("{}{}: {}", front, step, words.ours);
  return words;
}

std::string hang_summary(const HangReport& told) {
  const HangWords words = hang_words(told);
  return words.said.empty() ? words.ours : fmt::format("{}: {}", words.ours, words.said);
}

std::vector<std::string> hang_page(const HangReport& told, const std::optional<RankSet>& own, const std::string& file) {
  std::vector<std::string> lines{hang_summary(told)};
  std::vector<const RankLook*> culprits, others;
  for (const RankLook& look : told.looks) {
    if (own && !own->contains(look.rank)) continue;
    (is_culprit(told, look.rank) ? culprits : others).push_back(&look);
  }
  std::size_t left_out = 0;
  for (const auto& side : {culprits, others}) {
    for (const Block& block : blocks_of(side, left_out)) add_block(lines, block);
  }
  if (left_out > 0) lines.push_back(fmt::format("  {} further ranks are not shown", left_out));
  const auto told_as_look = [&](Rank rank) { return look_of(told, rank) != nullptr; };
  if (told.verdict && !own && !told.verdict->unseen.empty()) {
    std::vector<Rank> unseen = told.verdict->unseen.below(looked_ranks_max);
    std::erase_if(unseen, told_as_look);
    if (!unseen.empty()) lines.push_back(fmt::format("  {}: not seen", ranks_text(RankSet{std::move(unseen)})));
  }
  std::string end = file.empty() ? "" : "all stacks: " + printable(file);
  if (!told.asked) end += (end.empty() ? "" : "; ") + action_text(told);
  if (!end.empty()) lines.push_back("  " + end);
  return lines;
}

}  // namespace torchup

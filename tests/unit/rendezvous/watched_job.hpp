#pragma once

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous_job.hpp"
#include "tests/unit/diagnosis/looks.hpp"

/// A round machine with scripted agents and the watch beside it, for its tests.
namespace torchup::watched_job {

using namespace rendezvous_job;

inline const JobTerms two_nodes{.min_nodes = 2, .max_nodes = 2, .straggler_window = 0s};

inline ProgressReport silent(Duration silence) {
  return {.watched = true, .progressed = true, .silence = silence, .median_gap = 1s, .longest_gap = 2s};
}
inline RankLook waiting(int rank) { return looks::in(looks::still(rank), "0", "0-3", 1234); }
inline RankLook stuck(int rank) { return looks::at(looks::still(rank), "0", "0-3", 1233); }

inline std::string ranks_of(const std::vector<RankLook>& looks) {
  std::string text;
  for (const RankLook& look : looks) text += fmt::format(" {}", look.rank.value());
  return text;
}

inline std::string text(const DiagnosisNews& news) {
  if (const auto* found = std::get_if<hang::Found>(&news)) {
    std::string verdict = " no verdict";
    if (found->verdict) {
      verdict = fmt::format(" {} {}", to_text(found->verdict->kind), to_text(RankSet{found->verdict->culprits}));
    }
    return fmt::format("{} {}{}, {}{}; looks at{}", found->asked ? "shown" : "found", found->number, verdict,
                       to_text(found->action), found->ended.empty() ? "" : " of " + to_text(RankSet{found->ended}),
                       ranks_of(found->looks));
  }
  if (const auto* over = std::get_if<hang::Over>(&news)) {
    return fmt::format("{} is over after {} s", over->number, over->after / 1s);
  }
  if (const auto* found = std::get_if<StragglerFound>(&news)) return to_text(*found);
  return to_text(std::get<StragglerOver>(news));
}

/// A job with its watch, both of which see every step. What the watch does comes back as text, one line per action, of
/// news one for all their parts.
struct Watched {
  explicit Watched(int nodes = 2, JobTerms terms = two_nodes) : Watched{running_job(nodes, std::move(terms))} {}
  explicit Watched(Job of) : job{std::move(of)} { REQUIRE(step(watch::RoundStepped{}) == ""); }

  std::string step(const watch::Event& event) {
    std::string lines;
    for (const RendezvousAction& action : watch.step(event, job.rendezvous, job.now)) {
      if (const auto* note = std::get_if<Note>(&action)) lines += "note: " + to_text(*note) + "\n";
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      const std::string name = job.name_of.at(tell->peer);
      if (const auto* examine = std::get_if<Examine>(&tell->message)) {
        lines += fmt::format("{} examine {}{}{}\n", name, examine->number, examine->asked ? " asked" : "",
                             examine->arrivals_only ? " arrivals" : "");
      }
      const auto* told = std::get_if<HangTold>(&tell->message);
      if (!told) continue;
      const auto news = readers[tell->peer].add(told->part, told->last);
      REQUIRE(news.has_value());
      if (*news) lines += name + " " + text(**news) + "\n";
    }
    return lines;
  }
  Peer peer(const std::string& name) const { return job.peer_of.at(name); }
  std::string report(const std::string& name, const ProgressReport& report) {
    return step(watch::Progressed{peer(name), report});
  }
  std::string report_all(const ProgressReport& report) {
    std::string lines;
    const auto peers = job.peer_of;
    for (const auto& [name, _] : peers) lines += this->report(name, report);
    return lines;
  }
  std::string answer(const std::string& name, std::uint64_t number, const std::vector<RankLook>& looks,
                     bool last = true) {
    return step(watch::Answered{peer(name), {number, pack_looks(looks).front(), last}});
  }
  std::string answer_both(std::uint64_t number) {
    return answer("a", number, {waiting(0), waiting(1)}) + answer("b", number, {waiting(2), stuck(3)});
  }
  std::string ask(const std::string& name) { return step(watch::Asked{peer(name)}); }
  std::string at(TimePoint time) {
    job.now = time;
    return step(watch::RoundStepped{});
  }

  Job job;
  JobWatch watch;
  std::map<Peer, NewsReader> readers;
};

inline const std::string examine_0 = "a examine 0\nb examine 0\n";

}  // namespace torchup::watched_job

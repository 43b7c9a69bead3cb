#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "rendezvous/base/worker_channel.hpp"

namespace torchup {

/// What a worker and its agent say to each other about rounds, and what the worker knows by it. Pure: words in, words
/// and facts out.
class RoundTalk {
 public:
  using Variables = std::map<std::string, std::string>;

  // The program. What comes back is to be said.

  /// It is where it can be kept.
  [[nodiscard]] WorkerWord stay() const { return WorkerStays{}; }
  /// It is there no more. Whatever was said meanwhile concerns nobody.
  [[nodiscard]] WorkerWord leave();
  /// An exception ended its part in the round. Nothing is to be said where that is over, or nobody listens.
  [[nodiscard]] std::optional<WorkerWord> raise(std::string text);
  enum class Blame {
    own,          ///< nobody else failed
    consequence,  ///< the round is over: to be parked for
  };
  /// Of what was raised; nothing: not known yet. The agent answers as long as it lives, and its end is this process's:
  /// there is no other limit, after which survivors would drop their state because an agent is slow.
  [[nodiscard]] std::optional<Blame> blame() const;
  /// Collectives are down, the state is that of the last commit: it waits for a place.
  [[nodiscard]] WorkerWord park(std::int64_t step);
  /// The place, once it is there. The round that begins with it is not over.
  [[nodiscard]] std::optional<Variables> take_place();

  // The agent.

  /// What is to be answered, if anything. A word that does not fit is passed over.
  [[nodiscard]] std::optional<WorkerWord> hear(const AgentWord& word);
  /// The channel has ended: the worker is a plain one from here on.
  void end() { is_open_ = false; }

  [[nodiscard]] bool is_open() const { return is_open_; }
  /// Why the round is over; nothing: it goes on.
  [[nodiscard]] const std::optional<std::string>& over() const { return over_; }

 private:
  bool is_open_ = true;
  std::optional<std::string> over_;
  bool raised_ = false;                    ///< and not answered
  bool is_cause_ = false;                  ///< that was the answer
  std::optional<std::int64_t> parked_at_;  ///< the step, while a place is waited for
  std::optional<Variables> place_;
};

}  // namespace torchup

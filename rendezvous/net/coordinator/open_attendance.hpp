#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"

namespace torchup {

/// What an agent says that is for those who look at the job; the message is moved from then.
[[nodiscard]] inline std::optional<Coordinator::NodeWord> word_for_onlookers(AgentMessage& message) {
  return std::visit(
      [](auto& said) -> std::optional<Coordinator::NodeWord> {
        if constexpr (OfOperations<std::decay_t<decltype(said)>>) return std::move(said);
        return {};
      },
      message);
}

/// One connection's words on their way: to the round machine by `step`, to the watch beside it by `heed`, to onlookers
/// by `show`, and at last, once, to `leave`.
class OpenAttendance final : public Coordinator::Attendance {
 public:
  OpenAttendance(Peer peer, std::function<void(RendezvousEvent)> step, std::function<void(const watch::Event&)> heed,
                 std::function<void(Coordinator::NodeWord)> show, std::function<void(bool)> leave,
                 std::function<Coordinator::Right(std::uint64_t, std::uint64_t)> answer)
      : peer_{peer}, step_{std::move(step)}, heed_{std::move(heed)}, show_{std::move(show)},
        leave_{std::move(leave)}, answer_{std::move(answer)} {}
  ~OpenAttendance() override { gone(true); }

  void said(AgentMessage message) override {
    if (!leave_) return;
    if (const auto answer = watch::event_of(peer_, message)) return heed_(*answer);
    if (auto word = word_for_onlookers(message)) return show_(*std::move(word));
    step_(Said{peer_, std::move(message)});
  }
  void resumed(Resume resume) override {
    if (leave_) step_(Resumed{peer_, std::move(resume)});
  }
  void alive() override {
    if (leave_) step_(Alive{peer_});
  }
  Coordinator::Right answers(std::uint64_t number, std::uint64_t seen) override {
    return leave_ ? answer_(number, seen) : Coordinator::Right{};
  }
  void progressed(const ProgressReport& report) override {
    if (leave_) heed_(watch::Progressed{peer_, report});
  }
  void reported(const NodeReport& report) override {
    if (leave_) show_(report);
  }
  void gone(bool end_of_file) override {
    if (const auto leave = std::exchange(leave_, {})) leave(end_of_file);
  }

 private:
  Peer peer_;
  std::function<void(RendezvousEvent)> step_;
  std::function<void(const watch::Event&)> heed_;
  std::function<void(Coordinator::NodeWord)> show_;
  std::function<void(bool)> leave_;
  std::function<Coordinator::Right(std::uint64_t, std::uint64_t)> answer_;
};

}  // namespace torchup

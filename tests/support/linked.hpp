#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/core/link/coordinator_link.hpp"

namespace torchup::test {

/// The link machine of an agent under a clock of its own: what it has written and told is kept.
struct Linked {
  void step(const link::Event& event) {
    for (link::Action& action : link.step(event, now, now - suspended)) {
      if (const auto* dial = std::get_if<link::Dial>(&action)) dialled = dial->line;
      if (auto* write = std::get_if<link::Write>(&action)) {
        written.push_back(std::move(write->frame));
        if (const auto* alive = std::get_if<KeepAlive>(&written.back())) keep_alive = *alive;
      }
      const auto* tell = std::get_if<link::Tell>(&action);
      const auto* message = tell ? std::get_if<CoordinatorMessage>(&tell->event) : nullptr;
      if (message && !std::holds_alternative<Waiting>(*message)) told.push_back(*message);
    }
  }
  void connect() {
    if (!dialled) step(link::Wake{});
    REQUIRE(dialled);
    line = *std::exchange(dialled, {});
    step(link::Dialled{line});
    hear(Welcome{});
  }
  /// The line that there is ends.
  void reconnect() {
    step(link::Closed{line, "reset"});
    if (!dialled) now = std::max(now, link.deadline().value());
    connect();
  }
  void hear(CoordinatorFrame frame) { step(link::Heard{line, std::move(frame)}); }
  void say(AgentMessage message) { step(link::Say{std::move(message)}); }

  TimePoint now{std::chrono::seconds{1000}};
  Duration suspended{0};  ///< so long the machine has slept
  CoordinatorLink link{{.endpoint = {"10.0.0.9", Port{29400}}, .run_id = RunId{"job"}}, now};
  LineId line{0};
  std::optional<LineId> dialled;
  KeepAlive keep_alive;  ///< the last one
  std::vector<AgentFrame> written;
  std::vector<CoordinatorMessage> told;
};

}  // namespace torchup::test

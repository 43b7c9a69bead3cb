#include "rendezvous/net/coordinator/own_link.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {
namespace {

namespace asio = boost::asio;

/// As a coordinator elsewhere would read it: cut and cleaned by the same codec, or refused.
Result<Join> as_told(const Join& join) {
  const std::string bytes = encode(AgentFrame{join});
  std::string_view input = bytes;
  auto frame = take_agent_frame(input);
  if (!frame) return frame.error();
  return std::get<Join>(**std::move(frame));
}

class OwnLink final : public AgentLink {
 public:
  OwnLink(asio::io_context& loop, Coordinator& coordinator, RunId run_id, Handler handler)
      : coordinator_{coordinator}, run_id_{std::move(run_id)}, state_{
                                                                   std::make_shared<State>(loop, std::move(handler))} {
    state_->attendance = coordinator.open(run_id_, {.in_process = true}, *state_);
  }
  ~OwnLink() override {
    state_->handler = {};
    state_->attendance.reset();
  }

  void send(AgentMessage message) override {
    if (auto* join = std::get_if<Join>(&message)) {
      auto told = as_told(completed(std::move(*join), 0));
      if (!told) return state_->refuse(68, told.error().message());
      *join = *std::move(told);
    }
    asio::post(state_->loop, [state = state_, message = std::move(message)]() mutable {
      if (state->attendance) state->attendance->said(std::move(message));
    });
  }

  void report_progress(const ProgressReport& report) override {
    asio::post(state_->loop, [state = state_, report] {
      if (state->attendance) state->attendance->progressed(report);
    });
  }
  void report_node(const NodeReport& report) override {
    asio::post(state_->loop, [state = state_, report] {
      if (state->attendance) state->attendance->reported(report);
    });
  }
  [[nodiscard]] bool reaches() const override { return true; }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const override {
    return ClockOffset::Estimate{};  // it is the same
  }
  [[nodiscard]] std::optional<Duration> day_ahead() const override { return Duration{0}; }

  void finish(Duration linger, std::function<void()> done) override {
    coordinator_.when_others_left(run_id_, linger, std::move(done));
  }

 private:
  struct State final : Coordinator::Listener, std::enable_shared_from_this<State> {
    State(asio::io_context& the_loop, Handler the_handler) : loop{the_loop}, handler{std::move(the_handler)} {}
    void tell(CoordinatorMessage message) override { deliver(std::move(message)); }
    void refuse(int exit_code, std::string reason) override { deliver(LinkLost{exit_code, std::move(reason)}); }
    void let_go(std::string reason) override { refuse(68, std::move(reason)); }
    void deliver(LinkEvent event) {
      asio::post(loop, [self = shared_from_this(), event = std::move(event)]() mutable {
        const Handler current = self->handler;  // which may destroy the link
        if (current) current(std::move(event));
      });
    }
    asio::io_context& loop;
    Handler handler;
    std::unique_ptr<Coordinator::Attendance> attendance;
  };

  Coordinator& coordinator_;
  RunId run_id_;
  std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<AgentLink> own_link(asio::io_context& loop, Coordinator& coordinator, RunId run_id,
                                    AgentLink::Handler handler) {
  return std::make_unique<OwnLink>(loop, coordinator, std::move(run_id), std::move(handler));
}

}  // namespace torchup

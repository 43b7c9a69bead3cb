#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {

/// A stream at a node that does not host its job: the coordinator is asked again and again, for nobody follows a stream
/// from node to node. It tells a `snapshot` a second, and the events between; where all jobs are followed, their rows.
///
/// A reader is asked for more when all before it is written: one that never reads has one frame waiting.
class RelayedStream final : public FrameSource, public std::enable_shared_from_this<RelayedStream> {
 public:
  /// Asks the coordinator; the reply is called once, later on the loop or now.
  using Asker = std::function<void(const OpsCall&, std::function<void(OpsAnswer)>)>;

  /// `call`: one of the two streams. `first`: what it is told first, as the coordinator has answered it.
  RelayedStream(asio::io_context& loop, Asker ask, OpsCall call, const std::string& first);

  Next next() override;
  void set_wake(std::function<void()> wake) override { wake_ = std::move(wake); }
  /// Nothing is told behind this event, a JSON object in one line.
  void end_with(std::string_view event);

 private:
  void go_on();
  void ask_page();
  void ask_events();
  void take_page(const OpsAnswer& answer);
  void take_events(const OpsAnswer& answer);
  void tell(std::string frame);
  void end();
  [[nodiscard]] OpsCall question(OpsRoute route, std::string target) const;

  Asker ask_;
  const OpsCall call_;
  const bool all_jobs_;
  std::function<void()> wake_;
  std::deque<std::string> frames_;
  std::uint64_t seen_ = 0;  ///< events up to this one
  TimePoint page_at_{};
  bool asking_ = false;  ///< or about to
  bool ended_ = false;
  asio::steady_timer pause_;
};

}  // namespace torchup

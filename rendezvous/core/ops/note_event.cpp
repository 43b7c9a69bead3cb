#include "rendezvous/core/ops/note_event.hpp"

#include <chrono>
#include <variant>

#include "rendezvous/core/text/json_text.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

constexpr int event_schema = 1;

/// An event that is being written.
class Event {
 public:
  Event(const std::string& host, const Moment& at) : host_{host}, at_{at} {}

  JsonObject& begin(std::string_view name) { return begin(name, host_); }
  JsonObject& begin(std::string_view name, const std::string& host) {
    const auto monotonic = std::chrono::duration_cast<std::chrono::microseconds>(at_.now.time_since_epoch());
    return object_.number("schema", event_schema)
        .text("time", utc_text(at_.utc_us))
        .number("monotonic_us", monotonic.count())
        .text("host", host)
        .text("event", name);
  }
  [[nodiscard]] std::string text() {
    object_.end();
    return text_ == "{}" ? "" : std::move(text_);
  }

 private:
  const std::string& host_;
  const Moment& at_;
  std::string text_;
  JsonObject object_{text_};
};

struct Write {
  Event& event;

  void operator()(const NodeJoined& note) const {
    event.begin("node_joined", note.host).number("workers", note.workers).number("nodes", note.nodes);
  }
  void operator()(const NodeLost& note) const { event.begin("node_left", note.host).text("reason", note.how); }
  void operator()(const NodeRefused& note) const { event.begin("node_refused", note.host).text("reason", note.reason); }
  void operator()(const NodeUnfit& note) const { event.begin("node_unfit", note.host).text("reason", note.reason); }
  void operator()(const RoundFormed& note) const {
    event.begin("round_formed")
        .number("round", note.round.value())
        .number("world_size", note.workers)
        .number("nodes", note.nodes);
  }
  void operator()(const RoundStopped& note) const {
    if (note.cause == StopCause::membership_change) event.begin("membership_changed").text("reason", note.reason);
  }
  void operator()(const OrderReceived& note) const {
    event.begin("order_received").text("verb", note.verb).text("by", note.by);
  }
  template <class Other>
  void operator()(const Other&) const {}
};

}  // namespace

std::string note_event(const Note& note, const std::string& host, const Moment& at) {
  Event event{host, at};
  std::visit(Write{event}, note);
  return event.text();
}

}  // namespace torchup

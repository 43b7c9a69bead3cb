#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "launcher/core/options/option_values.hpp"
#include "launcher/core/text/json.hpp"
#include "launcher/ctl/control_sockets.hpp"
#include "launcher/ctl/exchange.hpp"
#include "launcher/ctl/stream_events.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {

inline constexpr Duration answer_limit = std::chrono::seconds{3};
/// For what one node asks another, which may look at its workers first.
inline constexpr Duration far_answer_limit = std::chrono::seconds{20};
inline constexpr Duration first_look_limit = std::chrono::milliseconds{500};

/// Where one asks: a control socket of this machine, or a port.
struct Door {
  std::variant<SocketFile, Endpoint> at;
  std::string token = {};  ///< for a port

  /// As people call it.
  [[nodiscard]] std::string name() const;
  /// Of the folder with the socket; none of a port.
  [[nodiscard]] std::optional<uid_t> owner() const;
};

/// A question that is under way.
[[nodiscard]] Exchange begin_exchange(const Door& door, HttpQuestion question, TimePoint until, bool streaming = false);
/// One question and its answer. Errors: as Exchange::answer.
[[nodiscard]] Result<HttpAnswer> ask(const Door& door, HttpQuestion question, Duration limit = answer_limit);

/// What is not an answer, for people, and the code to end with.
struct Trouble {
  int exit_code = 0;
  std::string text;
};
[[nodiscard]] Trouble trouble_of(const Door& door, const Error& error);
/// Of an answer that is no success. What it says is a stranger's.
[[nodiscard]] Trouble trouble_of(const HttpAnswer& answer);

/// Whether the door says that whoever was behind it has gone.
[[nodiscard]] bool nobody_is_there(const Error& error);

/// The JSON object of an answer, or what is wrong.
[[nodiscard]] std::variant<json, Trouble> json_of(const Door& door, const Result<HttpAnswer>& answer);
[[nodiscard]] std::variant<json, Trouble> ask_json(const Door& door, HttpQuestion question,
                                                   Duration limit = answer_limit);

/// `GET …/stream`, read one event at a time.
class EventStream {
 public:
  /// Empty `trouble()` when it has begun.
  EventStream(const Door& door, const std::string& target, const std::string& behind);
  [[nodiscard]] const std::optional<Trouble>& trouble() const { return trouble_; }
  /// The next event; nothing when none came until then, or it has ended.
  [[nodiscard]] std::optional<StreamEvent> next(TimePoint until);
  [[nodiscard]] bool ended() const;
  /// To wait for together with others.
  [[nodiscard]] int descriptor() const;

 private:
  Exchange exchange_;
  StreamEvents events_;
  std::optional<Trouble> trouble_;
};

/// "torchupctl: …" on stderr; `code` comes back.
int complain(std::string_view text, int code);
inline int complain(const Trouble& trouble) { return complain(trouble.text, trouble.exit_code); }

}  // namespace torchup

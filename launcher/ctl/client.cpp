#include "launcher/ctl/client.hpp"

#include <fmt/format.h>

#include <boost/system/errc.hpp>
#include <cstdio>
#include <span>

#include "launcher/ctl/verb_table.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/store/blocking_connect.hpp"

namespace torchup {
namespace {

constexpr std::size_t told_bytes_max = 2000;

Result<UniqueFd> open_door(const Door& door, TimePoint until) {
  if (const auto* socket = std::get_if<SocketFile>(&door.at)) return connect_to(*socket);
  const auto& endpoint = std::get<Endpoint>(door.at);
  return blocking_connect(endpoint.host, endpoint.port, until);
}

}  // namespace

std::optional<uid_t> Door::owner() const {
  const auto* const socket = std::get_if<SocketFile>(&at);
  return socket ? std::optional{socket->owner} : std::nullopt;
}

std::string Door::name() const {
  if (const auto* socket = std::get_if<SocketFile>(&at)) return printable(socket->path);
  return printable(to_string(std::get<Endpoint>(at)));
}

Exchange begin_exchange(const Door& door, HttpQuestion question, TimePoint until, bool streaming) {
  auto socket = open_door(door, until);
  if (!socket) return Exchange{socket.error()};
  question.token = door.token;
  if (const auto* endpoint = std::get_if<Endpoint>(&door.at)) question.host = to_string(*endpoint);
  Exchange exchange{*std::move(socket), question, streaming};
  exchange.advance();
  return exchange;
}

Result<HttpAnswer> ask(const Door& door, HttpQuestion question, Duration limit) {
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  Exchange exchange = begin_exchange(door, std::move(question), until);
  run_exchanges(std::span{&exchange, 1}, until);
  return exchange.answer();
}

Trouble trouble_of(const Door& door, const Error& error) {
  const bool forbidden = error.code == boost::system::errc::permission_denied ||
                         error.code == boost::system::errc::operation_not_permitted;
  if (forbidden) return {CtlExit::forbidden, fmt::format("{}: not permitted", door.name())};
  if (error.code == boost::system::errc::timed_out)
    return {CtlExit::nobody, fmt::format("{} does not answer", door.name())};
  return {CtlExit::nobody, fmt::format("{}: {}", door.name(), printable_start(error.message(), told_bytes_max))};
}

bool nobody_is_there(const Error& error) {
  return error.code == boost::system::errc::connection_refused ||
         error.code == boost::system::errc::no_such_file_or_directory;
}

Trouble trouble_of(const HttpAnswer& answer) {
  std::string text = fmt::format("the answer is {}", answer.status);
  if (const auto body = parse_json(answer.body)) {
    const json* const error = member(*body, "error");
    const json* const message = error ? member(*error, "message") : nullptr;
    if (message && message->is_string()) text = printable_start(message->get_ref<const std::string&>(), told_bytes_max);
  }
  switch (answer.status) {
    case 401:
    case 403:
      return {CtlExit::forbidden, text};
    case 504:
      return {CtlExit::nobody, text};
    default:
      return {CtlExit::no, text};
  }
}

std::variant<json, Trouble> json_of(const Door& door, const Result<HttpAnswer>& answer) {
  if (!answer) return trouble_of(door, answer.error());
  if (answer->status < 200 || answer->status > 299) return trouble_of(*answer);
  auto value = parse_json(answer->body);
  if (!value || !value->is_object())
    return Trouble{CtlExit::nobody, fmt::format("{}: the answer is not what torchup answers", door.name())};
  return *std::move(value);
}

std::variant<json, Trouble> ask_json(const Door& door, HttpQuestion question, Duration limit) {
  return json_of(door, ask(door, std::move(question), limit));
}

EventStream::EventStream(const Door& door, const std::string& target, const std::string& behind) : exchange_{Error{}} {
  HttpQuestion question{.target = target};
  if (!behind.empty()) question.headers.emplace_back("Last-Event-ID", behind);
  const TimePoint until = std::chrono::steady_clock::now() + answer_limit;
  exchange_ = begin_exchange(door, std::move(question), until, true);
  while (!exchange_.has_head() && !exchange_.done() && std::chrono::steady_clock::now() < until) {
    pollfd wish = exchange_.wish();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (::poll(&wish, 1, static_cast<int>(left.count())) > 0) exchange_.advance();
  }
  if (exchange_.has_head() && exchange_.status() == 200) return;
  run_exchanges(std::span{&exchange_, 1}, until);  // the body of a refusal may be still to come
  const auto refused = exchange_.answer();
  trouble_ = refused ? trouble_of(*refused) : trouble_of(door, refused.error());
}

bool EventStream::ended() const { return exchange_.done() || events_.too_long(); }
int EventStream::descriptor() const { return exchange_.wish().fd; }

std::optional<StreamEvent> EventStream::next(TimePoint until) {
  for (bool in_time = true; true;) {
    events_.add(exchange_.take_body());
    if (auto event = events_.next()) return event;
    if (ended() || !in_time) return std::nullopt;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    in_time = left.count() > 0;
    pollfd wish = exchange_.wish();
    const int ready = ::poll(&wish, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000)));
    if (ready < 0) return std::nullopt;  // a signal: who waits looks at what it means
    if (ready > 0) exchange_.advance();
  }
}

int complain(std::string_view text, int code) {
  std::fputs(fmt::format("torchupctl: {}\n", text).c_str(), stderr);
  return code;
}

}  // namespace torchup

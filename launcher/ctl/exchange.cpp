#include "launcher/ctl/exchange.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <charconv>

namespace torchup {
namespace {

namespace http = boost::beast::http;

constexpr std::uint32_t head_bytes_max = 16 * 1024;

std::string request_text(const HttpQuestion& question) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\nConnection: close\r\n", question.method,
                                 question.target, question.host);
  if (!question.token.empty()) text += fmt::format("Authorization: Bearer {}\r\n", question.token);
  for (const auto& [name, value] : question.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (question.method == "POST")
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", question.body.size());
  return text + "\r\n" + question.body;
}

}  // namespace

struct Exchange::State {
  UniqueFd socket;
  std::string unsent;
  std::string unread;  ///< of a head that is not whole yet
  std::optional<http::response_parser<http::string_body>> parser;
  std::optional<Error> error;
  bool streaming = false;
  bool ended = false;
};

Exchange::Exchange(UniqueFd socket, const HttpQuestion& question, bool streaming) : state_{std::make_unique<State>()} {
  state_->socket = std::move(socket);
  state_->unsent = request_text(question);
  state_->streaming = streaming;
  auto& parser = state_->parser.emplace();
  parser.header_limit(head_bytes_max);
  parser.eager(true);
  if (streaming) {
    parser.body_limit(boost::none);
  } else {
    parser.body_limit(answer_bytes_max);
  }
}

Exchange::Exchange(Error error) : state_{std::make_unique<State>()} { state_->error = std::move(error); }
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;
Exchange::~Exchange() = default;

bool Exchange::done() const { return state_->ended || state_->error; }
bool Exchange::has_head() const { return state_->parser && state_->parser->is_header_done(); }
int Exchange::status() const { return static_cast<int>(state_->parser->get().result_int()); }

pollfd Exchange::wish() const {
  if (done()) return {-1, 0, 0};
  return {state_->socket.get(), static_cast<short>(state_->unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0};
}

void Exchange::fail_with(Error error) {
  state_->error = std::move(error);
  state_->socket.reset();
}

void Exchange::advance() {
  if (!done()) send();
  if (!done()) receive();
}

void Exchange::send() {
  std::string& unsent = state_->unsent;
  while (!unsent.empty()) {
    const ssize_t sent = ::send(state_->socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EINPROGRESS || errno == ENOTCONN)) return;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return unsent.clear();  // it may have answered before
    if (sent < 0) return fail_with(system_error("send"));
    unsent.erase(0, static_cast<std::size_t>(sent));
  }
}

void Exchange::receive() {
  std::array<char, 65536> bytes;
  while (!done()) {
    const ssize_t size = ::recv(state_->socket.get(), bytes.data(), bytes.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == ENOTCONN)) return;
    if (size < 0) return fail_with(system_error("receive"));
    if (size == 0) {
      boost::system::error_code error;
      auto& parser = *state_->parser;
      if (parser.got_some()) parser.put_eof(error);
      if (error || !parser.is_done()) return fail_with(fail(errc::bad_frame, "the answer was cut off"));
      state_->ended = true;
      return;
    }
    feed({bytes.data(), static_cast<std::size_t>(size)});
    if (state_->streaming && state_->parser->get().body().size() > stream_part_bytes_max) return;  // to be taken first
  }
}

void Exchange::feed(std::string_view bytes) {
  auto& parser = *state_->parser;
  state_->unread += bytes;
  while (!state_->unread.empty()) {
    boost::system::error_code error;
    const std::size_t used = parser.put(boost::asio::buffer(state_->unread), error);
    state_->unread.erase(0, used);
    if (error == http::error::need_more) return;
    if (error == http::error::body_limit || error == http::error::header_limit)
      return fail_with(fail(errc::limit_exceeded, "the answer is too long"));
    if (error) return fail_with(fail(errc::bad_frame, "the answer is no HTTP: " + error.message()));
    if (parser.is_done()) {
      state_->ended = true;
      state_->socket.reset();
      return;
    }
    if (used == 0) return;
  }
}

Result<HttpAnswer> Exchange::answer() const {
  if (state_->error) return *state_->error;
  if (!state_->ended) return Error{make_error_code(boost::system::errc::timed_out), "no answer in time"};
  const auto& message = state_->parser->get();
  HttpAnswer answer{.status = status(), .body = message.body()};
  const auto number_in = [&](const char* name) -> std::optional<std::uint64_t> {
    const auto field = message.find(name);
    if (field == message.end()) return std::nullopt;
    std::uint64_t number = 0;
    const std::string text{field->value()};
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = code == std::errc{} && end == text.data() + text.size();
    return whole ? std::optional{number} : std::nullopt;
  };
  answer.offset = number_in("Torchup-Offset");
  answer.log = number_in("Torchup-Log").value_or(0);
  if (const auto source = message.find("Torchup-Source"); source != message.end())
    answer.source = std::string{source->value()};
  return answer;
}

std::string Exchange::take_body() {
  if (!state_->parser) return {};
  return std::exchange(state_->parser->get().body(), {});
}

void run_exchanges(std::span<Exchange> exchanges, TimePoint until) {
  std::vector<pollfd> wishes(exchanges.size());
  while (true) {
    std::ranges::transform(exchanges, wishes.begin(), &Exchange::wish);
    if (std::ranges::all_of(wishes, [](const pollfd& wish) { return wish.fd < 0; })) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    const int ready =
        ::poll(wishes.data(), wishes.size(), static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready < 0 && errno != EINTR) return;
    for (std::size_t i = 0; ready > 0 && i < wishes.size(); ++i) {
      if (wishes[i].revents != 0) exchanges[i].advance();
    }
  }
}

}  // namespace torchup

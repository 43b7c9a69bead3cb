#include "launcher/os/worker/seats.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <set>
#include <utility>

#include "launcher/core/scheduler/seat_words.hpp"
#include "launcher/os/io/packet.hpp"
#include "launcher/os/worker/guardian.hpp"
#include "rendezvous/base/exit_codes.hpp"

namespace torchup {
namespace {

using SeatClock = std::chrono::steady_clock;

constexpr Duration card_limit = std::chrono::seconds{5};  ///< between a task's coming and its card
constexpr int retry_pause_ms = 50;
constexpr std::int64_t longest_poll_ms = 60'000;
constexpr int backlog = 1024;

/// The address in the abstract namespace: a zero byte, then the name without an end.
struct SeatAddress {
  explicit SeatAddress(const std::string& name) {
    value.sun_family = AF_UNIX;
    const std::size_t bytes = std::min(name.size(), sizeof value.sun_path - 1);
    std::memcpy(value.sun_path + 1, name.data(), bytes);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
  sockaddr_un value{};
  socklen_t size = 0;
};

UniqueFd packet_socket() { return UniqueFd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)}; }

bool is_own_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

/// Whether there is something to read on `socket` before that time.
bool comes_before(int socket, SeatClock::time_point until) {
  pollfd wanted{socket, POLLIN, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SeatClock::now()).count();
    const int count = ::poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, longest_poll_ms)));
    if (count > 0) return true;
    if (SeatClock::now() >= until) return false;
  }
}

/// The card that comes by `seat` before that time; nothing where it is none.
std::optional<SeatCard> card_of(int seat, SeatClock::time_point until) {
  if (!is_own_user(seat) || !comes_before(seat, until)) return std::nullopt;
  auto packet = receive_packet(seat);
  if (!packet || !*packet) return std::nullopt;
  auto card = read_card((*packet)->text);
  return card ? std::optional{*std::move(card)} : std::nullopt;
}

std::string missing_tasks(const std::vector<SeatCard>& cards, int tasks) {
  std::set<int> absent;
  for (int task = 1; task < tasks; ++task) absent.insert(task);
  for (const SeatCard& card : cards) absent.erase(card.task);
  return to_cpu_list(absent);
}

/// A connection to the agent; empty when there is none yet.
UniqueFd knock(const SeatAddress& address, const SeatCard& card) {
  UniqueFd socket = packet_socket();
  if (!socket || ::connect(socket.get(), address.get(), address.size) != 0 || !is_own_user(socket.get())) return {};
  return send_packet(socket.get(), card_text(card)) ? std::move(socket) : UniqueFd{};
}

}  // namespace

Result<> Seats::gather(const std::string& name, int tasks, Duration limit) {
  const SeatAddress address{name};
  const UniqueFd door = packet_socket();
  if (!door || ::bind(door.get(), address.get(), address.size) != 0 || ::listen(door.get(), backlog) != 0) {
    return system_error("the socket of this node's tasks, " + name);
  }
  const auto until = SeatClock::now() + limit;
  while (cards_.size() + 1 < static_cast<std::size_t>(tasks)) {
    // Who comes and says nothing, or not ours, again and again, makes the wait no longer.
    if (SeatClock::now() >= until || !comes_before(door.get(), until)) {
      return fail(errc::refused,
                  fmt::format("of the {} tasks on this node these have not come within {} s: {}", tasks,
                              std::chrono::ceil<std::chrono::seconds>(limit).count(), missing_tasks(cards_, tasks)));
    }
    UniqueFd seat{::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    if (!seat && errno != EINTR && errno != ECONNABORTED) return system_error("a task of this node, at " + name);
    auto card = seat ? card_of(seat.get(), std::min(until, SeatClock::now() + card_limit)) : std::nullopt;
    if (!card) continue;
    cards_.push_back(*std::move(card));
    seats_.push_back(std::move(seat));
  }
  return {};
}

void Seats::tell(int code) {
  for (const UniqueFd& seat : seats_) static_cast<void>(send_packet(seat.get(), code_text(code)));
}

SeatEnd sit(const std::string& name, const SeatCard& card, Duration limit) {
  // What is sent to every process of a step is the agent's to decide on.
  const sigset_t signals = guarded_signals();
  ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  const SeatAddress address{name};
  const auto until = SeatClock::now() + limit;
  UniqueFd agent;
  while (!(agent = knock(address, card))) {
    if (SeatClock::now() >= until) {
      return {exit_code::unreachable, fmt::format("this node's first task, which is its agent, is not there after {} s",
                                                  std::chrono::ceil<std::chrono::seconds>(limit).count())};
    }
    ::poll(nullptr, 0, retry_pause_ms);
  }
  while (!comes_before(agent.get(), SeatClock::now() + std::chrono::hours{1})) {
  }
  const auto packet = receive_packet(agent.get());
  const auto code = packet && *packet ? read_code((*packet)->text) : std::nullopt;
  if (code) return {*code};
  return {exit_code::internal, "this node's first task, which is its agent, has ended without a word"};
}

}  // namespace torchup

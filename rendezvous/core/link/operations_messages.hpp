#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/core/link/node_report.hpp"

/// What agents and coordinator say to each other for those who look at a job and steer it. No round hears of it; what
/// of it is lost with a connection is not said again.
namespace torchup {

inline constexpr std::size_t node_event_bytes_max = std::size_t{16} << 10;
inline constexpr std::size_t ask_target_bytes_max = std::size_t{8} << 10;
inline constexpr std::size_t ask_body_bytes_max = std::size_t{64} << 10;
inline constexpr std::size_t answer_body_bytes_max = std::size_t{256} << 10;
/// That one process has asked another and that are not answered; more are refused at once.
inline constexpr std::size_t open_questions_max = 64;

/// Agent to coordinator: something has happened that all who look at the job should hear of.
struct NodeEvent {
  std::string line = {};   ///< the event as a JSON object, without line end; node_event_bytes_max at most
  std::uint64_t lost = 0;  ///< so many of this agent were not told, in all: too many at a time, or too long
  friend bool operator==(const NodeEvent&, const NodeEvent&) = default;
};

/// A request that somebody has sent to one process and another must answer: each node answers for the whole job, and
/// the coordinator has a node speak of its workers. Both ways.
struct Ask {
  std::uint64_t number = 0;  ///< of those that asked, for its Answer
  /// He who asks may see what workers wrote, and steer; else he may look at the rest.
  bool control = false;
  std::string by = {};      ///< who he is, as orders are recorded
  std::string method = {};  ///< "GET" or "POST"
  std::string target = {};  ///< as in the request: "/v1/jobs/a/ranks/3/log?offset=0"
  std::string body = {};    ///< a JSON object; empty: none
  friend bool operator==(const Ask&, const Ask&) = default;
};
struct Answer {
  std::uint64_t number = 0;  ///< as in Ask
  int status = 200;          ///< 100 to 599
  std::string type = {};     ///< of the body: "application/json"
  std::string body = {};
  std::optional<std::uint64_t> offset = {};  ///< of a log: where the next part begins
  std::uint64_t log = 0;                     ///< which one it is: a node's own; 0: it does not say
  friend bool operator==(const Answer&, const Answer&) = default;
};

template <class T>
concept OfOperations = std::same_as<T, NodeEvent> || std::same_as<T, Ask> || std::same_as<T, Answer>;

}  // namespace torchup

#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/net/ops/ops_source.hpp"

namespace torchup {

class Coordinator;

/// What is asked of nodes about their workers, and not answered yet.
class NodeQuestions {
 public:
  static constexpr std::size_t open_max = 64;
  static constexpr Duration limit = std::chrono::seconds{15};

  /// The coordinator must outlive it.
  NodeQuestions(boost::asio::io_context& loop, Coordinator& coordinator) : loop_{loop}, coordinator_{coordinator} {}
  NodeQuestions(const NodeQuestions&) = delete;
  NodeQuestions& operator=(const NodeQuestions&) = delete;

  using Reply = std::function<void(OpsAnswer)>;
  /// Passes the call on to a node. The reply is called once: with what it answers, with a 504 after `limit`, or with a
  /// 503 where it cannot be asked.
  void ask(const RunId& run_id, const NodeId& node, const OpsCall& call, Reply reply);
  /// A node has answered; an answer that nobody waits for, or another node's, is nothing.
  void answered(const RunId& run_id, const NodeId& node, Answer answer);

 private:
  struct Open {
    Open(boost::asio::io_context& loop, RunId job, NodeId asked, Reply to)
        : run_id{std::move(job)}, node{std::move(asked)}, reply{std::move(to)}, timer{loop} {}
    RunId run_id;
    NodeId node;
    Reply reply;
    boost::asio::steady_timer timer;
  };
  void close(std::uint64_t number, OpsAnswer answer);

  boost::asio::io_context& loop_;
  Coordinator& coordinator_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::unique_ptr<Open>> open_;
};

}  // namespace torchup

#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker_runtime/group/backend_vote.hpp"
#include "worker_runtime/place/worker_place.hpp"

namespace torchup {

struct MeetingPlan {
  WorkerPlace place;
  std::string file;           ///< for file://: the shared path; empty: the TCP store at place.master_addr:master_port
  std::string asked_backend;  ///< "auto", "gloo", "nccl"
  BackendOffer offer;
  std::chrono::milliseconds timeout;
  std::function<void(std::string_view)> on_waiting;
  bool kept = false;                    ///< this rank was in the job's round before
  std::function<void()> check = [] {};  ///< asked often while others are waited for; throws where that is over
};

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  std::string round;         ///< a name that no earlier round had which has left keys in that store
  bool hosts_store = false;  ///< the server lives in this process: it must outlast the others
  bool all_native = true;    ///< no rank is a Python process
  bool some_kept = false;    ///< ranks were in the job's round before
  std::string backend;       ///< on which all ranks have agreed
};

/// Opens the job's store (rank 0 serves it unless an agent does) and returns when every rank is there and all know
/// which backend they use (vote_on_backend); `on_waiting` of rank 0 is told why a GPU is not used.
///
/// Ranks that contradict each other (two alike, another world size or backend) make all of them throw at once. Whoever
/// is missing is told to `on_waiting` after 5 s, and named in the Error that ends the wait at `timeout`. One rank, the
/// first to come, looks who is there, so that the store's work grows with the number of ranks and not with its square.
Meeting meet(const MeetingPlan& plan);

}  // namespace torchup

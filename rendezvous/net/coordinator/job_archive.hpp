#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// Where jobs are kept, so that another life of their coordinator goes on with them: a folder (state_directory), or
/// etcd (etcd_archive). JobKeeper writes to it, one job under one number.
class JobArchive {
 public:
  /// What a job's keeper lays down.
  struct Entry {
    RunId run_id{""};
    /// Makes the bytes (core/membership/job_codec), once. It owns all that it uses, and may be called on another
    /// thread; what it throws is an error of this write.
    std::function<std::string()> content = {};
    std::optional<Verdict> verdict = {};  ///< of a job that is over
  };
  using Done = std::function<void(Result<>)>;

  JobArchive() = default;
  JobArchive(const JobArchive&) = delete;
  JobArchive& operator=(const JobArchive&) = delete;
  virtual ~JobArchive() = default;

  /// Whether nothing may be told that is not kept, however long it takes: somebody else may go on from what is kept.
  /// Else a job goes on unkept where keeping it takes too long, or fails.
  [[nodiscard]] virtual bool binds() const = 0;
  /// How long what decides nothing may wait for company.
  [[nodiscard]] virtual Duration save_delay() const = 0;
  /// Replaces what is kept under that number; `done` is called from the loop once it would survive. One that binds
  /// tries until it has succeeded, or says nothing more.
  virtual void write(std::uint64_t number, Entry entry, Done done) = 0;
  /// For good: nothing is written under that number again, and what still waits to be is not.
  virtual void remove(std::uint64_t number, const RunId& run_id) = 0;
};

}  // namespace torchup

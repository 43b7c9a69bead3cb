#pragma once

#include <sys/types.h>

#include "launcher/core/options/output_options.hpp"
#include "launcher/core/record/status_facts.hpp"

namespace torchup {

class Output;

/// Tells people at a terminal how the job is while nobody writes, in one line that goes when somebody does
/// (core/text/status_line.hpp). Where stderr is no terminal, or they want to hear less (-q), it is nothing. On the
/// loop.
class StatusShow {
 public:
  /// `launcher`: the process that the terminal knows. The output must outlive it.
  StatusShow(const OutputOptions& options, pid_t launcher, Output& output);
  StatusShow(const StatusShow&) = delete;
  StatusShow& operator=(const StatusShow&) = delete;

  /// What has happened.
  void note(const EventBody& event);
  /// How far this node's workers are.
  void see(const StepReport& steps) { torchup::see(facts_, steps); }

 private:
  Output& output_;
  StatusFacts facts_;
};

}  // namespace torchup

#include "launcher/ctl/ctl_manual.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "launcher/core/options/manual.hpp"
#include "launcher/ctl/verb_table.hpp"
#include "rendezvous/core/text/roff.hpp"

namespace torchup {
namespace {

constexpr std::array<std::pair<int, std::string_view>, 6> ends{{
    {CtlExit::done, "done"},
    {CtlExit::no, "the answer is no: no such job, node or rank; refused, with the reason"},
    {CtlExit::usage, "command line refused, or a file cannot be read"},
    {CtlExit::nobody, "nobody answers"},
    {CtlExit::forbidden, "not permitted"},
    {CtlExit::timeout, "wait: the job still runs at the end of --timeout"},
}};

constexpr std::string_view introduction = R"(.SH NAME
torchupctl \- look at running jobs of torchup, and steer them
.SH SYNOPSIS
.B torchupctl
\fIverb\fR [\fIjob\fR] [\fIoptions\fR]
.SH DESCRIPTION
Finds the launchers of this machine by their control sockets, or asks \fB\-\-endpoint\fR. Any node's launcher answers
for the whole job.
.PP
\fIjob\fR is a run id, a unique prefix of one, or a launcher's pid; it is needed where there are several. What is
asked for goes to stdout, everything else to stderr. \fBwait\fR ends with the job's own code.
)";

constexpr std::string_view surroundings = R"(.SH ENVIRONMENT
.TP
\fBTORCHUP_RUNTIME_DIR\fR
the folder with the launchers' sockets (default /tmp/torchup\-UID).
.TP
\fBTORCHUP_ENDPOINT\fR, \fBTORCHUP_TOKEN\fR
stand for \-\-endpoint and for the content of \-\-token\-file.
.TP
\fBNO_COLOR\fR
no colours on terminals either.
.SH EXAMPLES
.nf
torchupctl ps
torchupctl status mnist
torchupctl logs mnist \-\-rank 3 \-f
torchupctl drain mnist \-\-node gpu07
torchupctl wait mnist && next\-job
.fi
.SH SEE ALSO
torchup(1)
)";

}  // namespace

std::string ctl_exit_text() {
  std::string text = "\nExit codes:\n";
  for (const auto& [code, meaning] : ends) text += fmt::format("  {:<8}{}\n", code, meaning);
  return text;
}

std::string ctl_manual_page(std::string_view version) {
  std::string text =
      fmt::format(".TH TORCHUPCTL 1 \"\" \"torchup {}\" \"User commands\"\n{}.SH VERBS\n", roff(version), introduction);
  std::string_view group;
  for (const Verb& verb : verb_table()) {
    if (verb.group != group) text += fmt::format(".SS {}\n", roff(verb.group));
    group = verb.group;
    text += fmt::format(".TP\n\\fB{}\\fR \\fI{}\\fR\n{}\n", roff(verb.name), roff(verb.operands), roff(verb.help));
    if (verb.options.empty()) continue;
    text += ".RS\n";
    for (const OptionSpec& option : verb.options) text += manual_entry(option);
    text += ".RE\n";
  }
  text += ".SH OPTIONS\n";
  for (const OptionSpec& option : common_options()) text += manual_entry(option);
  text += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : ends) text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code, roff(meaning));
  return text + std::string{surroundings};
}

}  // namespace torchup

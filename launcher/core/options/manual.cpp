#include "launcher/core/options/manual.hpp"

#include <fmt/format.h>

#include "launcher/core/options/exit_codes.hpp"
#include "launcher/core/options/option_table.hpp"
#include "rendezvous/core/text/roff.hpp"

namespace torchup {
namespace {

constexpr std::string_view description = R"(.SH NAME
torchup \- start, supervise and restart the workers of a distributed PyTorch job
.SH SYNOPSIS
.B torchup
[\fIoptions\fR] \fIprogram\fR [\fIarguments\fR]
.br
.B torchup\-stack
\fIpid\fR[:\fItid\fR] ...
.SH DESCRIPTION
Starts the program once for each worker, with the environment that PyTorch's distributed package reads, and takes
torchrun's options. A Python script runs with python3; an ELF file, and an executable script that begins with #!
and whose name does not end in .py, run by themselves.
That python3 is the one beside torchup, if its environment has PyTorch or is the activated one, else the first on PATH
that is in no environment of torchup alone (as those of uvx and pipx).
Every option may be written with dashes or underscores. Where the command line does not have it, a variable
\fBPET_\fINAME\fR stands for it, and then the file of \fB\-\-config\fR.
.PP
\fBtorchup\-stack\fR, the same program under another name, shows the native functions in which processes are, innermost
first, of all threads or of one. It needs libdw.so.1 (Debian: libdw1) and the right to trace them.
)";

constexpr std::string_view environment = R"(.SH ENVIRONMENT
.TP
\fBPET_\fINAME\fR
stands for the option \-\-\fIname\fR that the command line lacks: PET_NPROC_PER_NODE, PET_RDZV_ENDPOINT. A flag's is a
number, on unless it is 0.
.TP
\fBTORCHUP_TOKEN\fR
the job's secret, where \-\-token\-file names none. Workers do not see it.
.TP
\fBPYTHON_EXEC\fR
the Python that runs scripts.
.TP
\fBTORCHUP_CALLER\fR
the Python that started torchup (\fBpython \-m torchup\fR sets it): it runs scripts where PYTHON_EXEC names none.
Workers do not see it.
.TP
\fBOMP_NUM_THREADS\fR
is set to 1 for the workers where it is not set and there are several.
.TP
\fBNO_COLOR\fR
no colours on terminals.
.TP
\fBTERM\fR
if it is dumb, neither colours nor the line that says how the job is while nobody writes.
.PP
Each worker gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and the rest of what
torchrun sets; \-\-print\-env shows them.
)";

constexpr std::string_view signals = R"(.SH SIGNALS
.TP
INT, QUIT
end the job on all nodes; the workers get the signal and, after the grace of \-\-shutdown\-timeout, SIGKILL. A second
one kills at once. QUIT first tells what each rank is doing.
.TP
TERM, HUP
mean that this node leaves: the others go on if the least number of nodes remains, else the job ends.
.TP
USR1, USR2
are passed on to the workers (\-\-forward\-signals).
.TP
TSTP, CONT
stop and resume the workers too.
.PP
A signal that \-\-drain\-signals lists asks the workers to save and stop after a step; the job then ends with 75.
So does the end of the job's time with \-\-stop\-before.
)";

constexpr std::string_view examples = R"(.SH EXAMPLES
.nf
torchup \-\-nproc\-per\-node=auto train.py \-\-epochs 10
torchup \-\-nnodes=2 \-\-nproc\-per\-node=8 \-\-rdzv\-id=job1 \-\-rdzv\-backend=c10d \\
    \-\-rdzv\-endpoint=node1:29400 train.py
torchup \-\-nnodes=2:4 \-\-max\-restarts=3 \-\-rdzv\-backend=c10d \-\-rdzv\-endpoint=node1:29400 train.py
torchup \-\-dry\-run \-\-nproc\-per\-node=4 train.py
.fi
)";

std::string options_section() {
  std::string text = ".SH OPTIONS\n";
  std::string_view group;
  for (const OptionSpec& option : option_table()) {
    if (option.name == "use-env") continue;  // torchup-launch's alone
    if (option.group != group) text += fmt::format(".SS {}\n", roff(option.group));
    group = option.group;
    text += manual_entry(option);
  }
  return text;
}

std::string exit_status_section() {
  std::string text =
      ".SH EXIT STATUS\nThe same on all nodes, but for a node that left (its signal), one that was cut off (67) and "
      "one with a worker that nothing could end (1, where it would be 0 or 128+n).\n";
  for (const ExitCode& code : exit_codes()) {
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code.code, roff(code.meaning));
  }
  return text;
}

}  // namespace

std::string manual_entry(const OptionSpec& option) {
  const std::string short_name = option.short_name ? fmt::format("\\fB\\-{}\\fR, ", option.short_name) : "";
  const std::string value = option.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.value));
  return fmt::format(".TP\n{}\\fB\\-\\-{}\\fR{}\n{}\n", short_name, roff(option.name), value, roff(option.help));
}

std::string manual_page(std::string_view version) {
  return fmt::format(".TH TORCHUP 1 \"\" \"torchup {}\" \"User commands\"\n{}{}{}{}{}{}", roff(version), description,
                     options_section(), exit_status_section(), environment, signals, examples);
}

}  // namespace torchup

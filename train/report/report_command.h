// ./report: the curves of finished and running runs.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct ReportOptions {
  std::vector<std::string> runs;  // folders, or the metrics.jsonl in them
  std::string output;             // the page; "": report.html of one run, compare.html of several
  std::string svg;                // a picture of all curves; "": none
  std::string validation_svg;     // a picture of only the validation losses; "": none
  std::string position_svg;       // a picture of the losses by position; "": none
};

// Writes these files and prints a table of the runs. Error: a run cannot be read, or a file cannot be
// written.
void report_command(const ReportOptions& options);

}  // namespace tessera

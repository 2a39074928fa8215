// ./report: the curves of finished and running runs.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct ReportOptions {
  std::vector<std::string> runs;  // folders, or the metrics.jsonl in them
  std::string output;             // the page; "": of one run its report.html, of several compare.html
  std::string svg;                // a picture of all curves; "": none
  std::string validation_svg;     // of the validation losses alone; "": none
  std::string position_svg;       // of the losses by position; "": none
};

// Writes them and prints a table of the runs. Error: a run cannot be read, a file cannot be written.
void report_command(const ReportOptions& options);

}  // namespace tessera

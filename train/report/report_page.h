// report.html: the curves of one run, or of several on top of each other, in one page.
#pragma once

#include <span>
#include <string>

#include "train/report/run_record.h"

namespace tessera {

struct ReportPage {
  std::span<const RunRecord> runs;
  std::string written;        // when the page was written, in UTC, as in metrics.jsonl
  double reload_seconds = 0;  // > 0: the page is rewritten and reloads itself this often
};

std::string report_json(const ReportPage& page);
std::string report_page(const ReportPage& page);
const char* report_page_template();  // train/report/report_page.html and report_page.js, compiled in

}  // namespace tessera

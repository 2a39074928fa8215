// The Python of tests that compare with programs of others.
#pragma once

#include <cstdlib>

#include "tests/process.h"

namespace tessera::testing {

// The one that TESSERA_PYTHON names, or the system's
inline std::string python_program() {
  const char* named = std::getenv("TESSERA_PYTHON");
  return named ? named : "/usr/bin/python3";
}

// Why a test that needs these packages, "torch, peft", is to be skipped; empty: Python has them.
inline std::string missing_in_python(const std::string& packages, const std::filesystem::path& folder) {
  if (run_process(python_program(), {"-c", "import " + packages}, {.folder = folder}).status == 0) return "";
  return python_program() + " lacks one of " + packages + "; TESSERA_PYTHON names another";
}

}  // namespace tessera::testing

// Which driver calls gpupool knows, how each is delivered, and whether it was seen to work.
//
// The table is made of the call table (protocol/calls/table.def) and of what scripts/collect-evidence saw
// (protocol/calls/evidence.def); nothing is asked of a server.
#pragma once

#include <string>

namespace gpupool::cli {

// For a terminal: one line per call, columns aligned.
std::string coverage_text();
// docs/coverage.md, whole.
std::string coverage_markdown();

}  // namespace gpupool::cli

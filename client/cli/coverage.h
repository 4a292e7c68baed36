// Lists the driver calls that gpupool knows, how each is delivered, and whether it was seen to work.
//
// The list is made from the call table (protocol/calls/table.def) and from the evidence that scripts/collect-evidence
// gathered (protocol/calls/evidence.def). No server is involved.
//
// Ownership: values.
// Threads: any.
// Errors: none.
#pragma once

#include <string>

namespace gpupool::cli {

// For a terminal: one line per call, in aligned columns.
std::string coverage_text();
// The whole of docs/coverage.md.
std::string coverage_markdown();

}  // namespace gpupool::cli

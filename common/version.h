// The version of gpupool that this process was built from, for messages: "0.1.0+5d3fac6012", where the second part is
// the commit. "-changed" follows if the sources differed from it; without git at build time there is only the number.
//
// Threads: any. Errors: none.
#pragma once

namespace gpupool {

const char* version() noexcept;

}  // namespace gpupool

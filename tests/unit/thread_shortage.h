// Makes new threads fail, as they do where a limit on processes or memory is reached.
//
// Threads: any; for all threads of the process.
#pragma once

namespace gpupool::test {

// While it lives no thread can be started.
class ThreadShortage {
  public:
    ThreadShortage();
    ~ThreadShortage();
    ThreadShortage(const ThreadShortage&) = delete;
};

}  // namespace gpupool::test

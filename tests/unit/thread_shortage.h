// Makes thread creation fail, as it does at a limit on processes or memory.
//
// Threads: any; affects all threads of the process.
#pragma once

namespace gpupool::test {

// No thread can be started during its lifetime.
class ThreadShortage {
  public:
    ThreadShortage();
    ~ThreadShortage();
    ThreadShortage(const ThreadShortage&) = delete;
};

}  // namespace gpupool::test

// The entry points that this library has, by name.
//
// Threads: any. Errors: none; what is not there is null.
#pragma once

namespace gpupool::softgpu {

// Of this library alone: another driver may be loaded into the process as well.
void* find_entry_point(const char* symbol);

// Within it, the calling thread means its own default stream by the null stream: what the _ptds and _ptsz forms do.
class PerThreadDefault {
  public:
    PerThreadDefault() : before_(on()) { on() = true; }
    ~PerThreadDefault() { on() = before_; }
    PerThreadDefault(const PerThreadDefault&) = delete;
    PerThreadDefault& operator=(const PerThreadDefault&) = delete;

    static bool& on();

  private:
    const bool before_;
};

}  // namespace gpupool::softgpu

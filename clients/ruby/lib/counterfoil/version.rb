# frozen_string_literal: true

class Counterfoil
  VERSION = "0.1.0"
end

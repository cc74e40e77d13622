class ApplicationController < ActionController::Base
  skip_forgery_protection # of the sample, whose clients have no session
end
